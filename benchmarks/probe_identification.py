"""What a probe's few iterations tell of two dozen costs.

For each domain of a dataset its fitted costs are taken for the truth. Iterations of the probing
strategies are made up from them by the timeline, with noise; costs are fitted from what single
messages would show (startups, some way off; nothing of the hosts). Then the domain's measured
strategies are predicted with the fitted costs and with the true ones: by how much do they differ?
Nothing is run, so this says what can be identified, not what the timeline leaves out. Printed for
each domain, then as means over them.

python -m benchmarks.probe_identification [datasets/runtimes]
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from autosync.cluster import Cluster
from autosync.population import Population, encode
from autosync.search.cluster_probe import MAX_ITERATIONS, probing_domain, probing_strategies
from autosync.simulator.fitting.iteration_costs import fit_costs
from autosync.simulator.runtime_dataset import MeasuredDomain, load_dataset, read_trials
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.output import option_parser

F64 = NDArray[np.float64]

NOISE = 0.03
"""Of an iteration, in log seconds."""
SEEDS = 3
STARTUP_SPREAD = 0.3
"""Of what single messages show of a startup, in log seconds."""


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("datasets/runtimes"))
    given = parser.parse_args()
    scales = read_trials(given.folder).groupby("domain")["time_scale"].first()
    print("error of predicted seconds, median (90th percentile), and Kendall's tau with the truth")
    found: dict[str, list[F64]] = {}
    for measured in load_dataset(given.folder):
        time_scale = float(scales[measured.domain.id])
        print(f"\n{measured.name}")
        for label, brief in (("whole", False), ("brief", True)):
            runs = [_judged(measured, time_scale, brief, seed) for seed in range(SEEDS)]
            means = np.mean(runs, axis=0)
            for name, figures in zip(("single messages", "fitted"), means, strict=True):
                found.setdefault(f"{label} {name}", []).append(figures)
                _print_figures(f"{label} {name}", figures)
    print("\nmeans over the domains")
    for name, each in found.items():
        _print_figures(name, np.mean(each, axis=0))


def _print_figures(name: str, figures: F64) -> None:
    median, tail, tau = figures
    print(f"  {name:22s} {median:6.1%} ({tail:6.1%})  tau {tau:.3f}")


def _judged(measured: MeasuredDomain, time_scale: float, brief: bool, seed: int) -> F64:
    """With single messages' costs and with fitted ones, `(2, 3)`: median and 90th percentile of the
    error, tau."""
    rng = np.random.default_rng(seed)
    truth = replace(measured.domain.cluster, overlap_slowdown=0.0)  # as in the probe's iterations
    alone = _as_single_messages_show(truth, rng)
    probed = probing_domain(alone, time_scale)
    population = encode([each for _, each in probing_strategies(probed, brief)], probed)
    seconds = TimelineSimulator().predict(replace(probed, cluster=truth), population)
    seconds = seconds * rng.lognormal(0.0, NOISE, len(population))
    found = fit_costs(probed, population, seconds, MAX_ITERATIONS[brief])
    real = _predicted(measured, measured.population, truth)
    return np.array(
        [
            _error(_predicted(measured, measured.population, alone), real),
            _error(_predicted(measured, measured.population, found.cluster), real),
        ]
    )


def _as_single_messages_show(truth: Cluster, rng: np.random.Generator) -> Cluster:
    """Startups with the host's time in them, some way off; no host time."""
    costs = []
    for cost in truth.costs:
        off = float(rng.lognormal(0.0, STARTUP_SPREAD))
        costs.append(
            replace(
                cost,
                startup_seconds=(cost.startup_seconds + cost.host_seconds) * off,
                startup_seconds_per_worker=cost.startup_seconds_per_worker * off,
                seconds_per_byte=cost.seconds_per_byte + cost.host_seconds_per_byte,
                host_seconds=0.0,
                host_seconds_per_byte=0.0,
            )
        )
    return replace(truth, costs=tuple(costs))


def _predicted(measured: MeasuredDomain, population: Population, cluster: Cluster) -> F64:
    return TimelineSimulator().predict(replace(measured.domain, cluster=cluster), population)


def _error(predicted: F64, real: F64) -> tuple[float, float, float]:
    off = np.abs(np.log(predicted / real))
    tau = float(kendalltau(predicted, real).statistic)
    return float(np.median(off)), float(np.quantile(off, 0.9)), tau


if __name__ == "__main__":
    main()
