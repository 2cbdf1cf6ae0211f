"""What a probe's few iterations tell of two dozen costs.

For each domain of a dataset its fitted costs are taken for the truth. Iterations of the probing
strategies are made up from them by the timeline, with noise; costs are fitted from what single
messages would show (startups, some way off; nothing of the hosts). Then the domain's measured
strategies are predicted with the fitted costs and with the true ones: by how much do they differ?
Nothing is run, so this says what can be identified, not what the timeline leaves out.

python -m benchmarks.probe_identification [datasets/runtimes] [--noise 0.03] [--seeds 3]
"""

import time
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

STARTUP_SPREAD = 0.3
"""Of what single messages show of a startup, in log seconds."""


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("datasets/runtimes"))
    parser.add_argument("--noise", type=float, default=0.03, help="of an iteration, log seconds")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    scales = read_trials(given.folder).groupby("domain")["time_scale"].first()
    print("error of predicted seconds, median (90th percentile), and Kendall's tau with the truth")
    for measured in load_dataset(given.folder):
        time_scale = float(scales[measured.domain.id])
        print(f"\n{measured.name}")
        for brief in (False, True):
            runs = [
                _judged(measured, time_scale, brief, given.noise, seed)
                for seed in range(given.seeds)
            ]
            label = "brief" if brief else "whole"
            for name, column in (("single messages", 0), ("fitted", 1)):
                median, tail, tau = np.mean([run[column] for run in runs], axis=0)
                print(f"  {label} {name:16s} {median:6.1%} ({tail:6.1%})  tau {tau:.3f}")
            print(f"  {label} fit {np.mean([run[2][0] for run in runs]):.1f} s")


def _judged(
    measured: MeasuredDomain, time_scale: float, brief: bool, noise: float, seed: int
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """With single messages' costs and with fitted ones: median and 90th percentile of the error,
    tau; then the fit's seconds."""
    rng = np.random.default_rng(seed)
    truth = replace(measured.domain.cluster, overlap_slowdown=0.0)  # as in the probe's iterations
    alone = _as_single_messages_show(truth, rng)
    probed = probing_domain(alone, time_scale)
    population = encode([each for _, each in probing_strategies(probed, brief)], probed)
    seconds = TimelineSimulator().predict(replace(probed, cluster=truth), population)
    seconds = seconds * rng.lognormal(0.0, noise, len(population))
    began = time.perf_counter()
    found = fit_costs(probed, population, seconds, MAX_ITERATIONS[brief])
    took = time.perf_counter() - began
    real = _predicted(measured, measured.population, truth)
    return (
        _error(_predicted(measured, measured.population, alone), real),
        _error(_predicted(measured, measured.population, found.cluster), real),
        (took,),
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
