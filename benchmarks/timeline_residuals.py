"""By how much measured iterations exceed what the timeline predicts, and what goes with it.

Of every domain of a dataset: how the timeline ranks with the costs that were probed, and with those
that its first trials correct (12 hand-designed strategies and 8 samples, drawn by seed; judged on
all others). Then the excess by the predicted busy share of the busiest link.

python -m benchmarks.timeline_residuals [datasets/runtimes]
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from autosync.domain import Domain
from autosync.simulator.cost.network import network_of
from autosync.simulator.fitting.iteration_costs import recalibrated
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.ranking_accuracy import pairwise_accuracy
from autosync.simulator.runtime_dataset import SAMPLED, MeasuredDomain, load_dataset
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator, busiest_link_seconds
from benchmarks.output import option_parser

F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

BUSY_SHARES = (0.0, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, np.inf)
FEWEST = 4
"""Strategies for a median."""
DESIGNS, SAMPLES, SEEDS = 12, 8, 2
"""Strategies that correct the costs, and how often they are drawn."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Strategies that no cost was fitted to, of one domain. rows i64[n]: which they are. predicted,
    measured f64[n]: seconds."""

    rows: NDArray[np.int64]
    predicted: F64
    measured: F64

    @property
    def excess(self) -> F64:
        result: F64 = np.log(self.measured / self.predicted)
        return result


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("datasets/runtimes"))
    given = parser.parse_args()
    for measured in load_dataset(given.folder):
        print(f"\n{measured.name}")
        runs = [_fitted(measured, seed) for seed in range(SEEDS)]
        before, after = ([run[i] for run in runs] for i in range(2))
        print(f"  probed        {_scores(before)}\n  recalibrated  {_scores(after)}")
        for name, group in _groups(measured):
            _print_excess(name, group, before, after)


def first_trials(measured: MeasuredDomain, seed: int) -> NDArray[np.int64]:
    """Designs and samples that correct the costs; no picks, which came after them."""
    rng = np.random.default_rng(seed)
    drawn = [i for i, origin in enumerate(measured.origins) if origin == SAMPLED]
    samples = np.array(drawn, dtype=np.int64)
    return np.concatenate(
        [rng.permutation(measured.designs)[:DESIGNS], rng.permutation(samples)[:SAMPLES]]
    )


def _fitted(measured: MeasuredDomain, seed: int) -> tuple[Judged, Judged]:
    """The same strategies judged with the probed costs, and with those after the first trials."""
    domain, population, seconds = measured.domain, measured.population, measured.label_seconds
    first = first_trials(measured, seed)
    rest = np.setdiff1d(np.arange(len(population)), first)
    corrected = recalibrated(domain, population.take(first), seconds[first])
    return _judged(measured, domain, rest), _judged(measured, corrected, rest)


def _judged(measured: MeasuredDomain, domain: Domain, rows: NDArray[np.int64]) -> Judged:
    predicted = TimelineSimulator().predict(domain, measured.population.take(rows))
    return Judged(rows, predicted, measured.label_seconds[rows])


def _scores(runs: list[Judged]) -> str:
    rows = []
    for run in runs:
        best = np.argsort(run.predicted, kind="stable")
        quarter = best[: len(best) // 4]
        fastest = np.argsort(run.measured, kind="stable")[: len(best) // 4]
        rows.append(
            (
                kendalltau(run.predicted, run.measured).statistic,
                pairwise_accuracy(run.predicted, run.measured),
                pairwise_accuracy(run.predicted[fastest], run.measured[fastest]),
                np.median(run.excess[quarter]),
                np.median(run.excess[best[:8]]),
                run.measured[best[0]] / run.measured.min() - 1.0,
            )
        )
    tau, pairs, fast, excess, top, regret = np.mean(rows, axis=0)
    return (
        f"tau {tau:.3f}  pairs {pairs:.3f}  of the fastest quarter {fast:.3f}  "
        f"excess of its predicted {excess:+.1%}  of the first eight {top:+.1%}  regret {regret:.1%}"
    )


def _groups(measured: MeasuredDomain) -> Iterator[tuple[str, Bools]]:
    """Named sets of strategies, by how busy their busiest link is (as probed)."""
    plans = compile_plans_fast(measured.population, measured.domain)
    busy = busiest_link_seconds(plans, network_of(measured.domain.cluster, plans.teams))
    share = busy / TimelineSimulator().predict_plans(measured.domain, measured.population, plans)
    for low, high in pairwise(BUSY_SHARES):
        yield f"link busy {low:.0%} to {high:.0%}", (share >= low) & (share < high)


def _print_excess(name: str, group: Bools, before: list[Judged], after: list[Judged]) -> None:
    if group.sum() < FEWEST:
        return
    probed, corrected = (
        np.concatenate([run.excess[group[run.rows]] for run in runs]) for runs in (before, after)
    )
    print(
        f"    {name:24s} {int(group.sum()):4d} strategies, excess "
        f"{np.median(probed):+.1%} probed, {np.median(corrected):+.1%} recalibrated"
    )


if __name__ == "__main__":
    main()
