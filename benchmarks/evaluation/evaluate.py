"""Evaluates simulators on measured domains; prints one table, and nothing is measured.

    python -m benchmarks.evaluation.evaluate [datasets/runtimes] [--simulators process gat ...]
        [--seeds 12] [--domains "vgg16, example-4x1-40gbe" ...] [--published]

Each simulator stands there twice: with what other domains taught it and without. Picks are ranked
before a domain's first trial, after 12 and after 20 (`pick_scores`); searches are replayed without
hand-designed strategies (`replay`). Means over domains; README.md beside this says more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from autosync.simulator.learned.encoders import gat_network
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.learned_simulator import LabelledTrials
from autosync.simulator.runtime_dataset import load_dataset
from benchmarks.evaluation.linear import linear
from benchmarks.evaluation.lstm import lstm_network
from benchmarks.evaluation.measured_pool import MeasuredPool, pool_of
from benchmarks.evaluation.pick_scores import (
    PICK_COLUMNS,
    TOP,
    PickScores,
    judge_picks,
    judged_picks,
    perfect_scores,
    pick_line,
)
from benchmarks.evaluation.process import (
    F64,
    I64,
    Predictor,
    Predictors,
    encoded,
    process,
    timeline,
)
from benchmarks.evaluation.published import published
from benchmarks.evaluation.replay import LEAST_STRATEGIES, replay
from benchmarks.output import option_parser, print_head

SIMULATORS: dict[str, Predictors] = {
    "timeline": timeline,
    "linear": linear,
    "process": process,
    "lstm": partial(encoded, lstm_network),
    "gat": partial(encoded, gat_network),
    "lstm_published": partial(published, lstm_network),
    "gat_published": partial(published, gat_network),
}
QUICK = ("timeline", "linear", "process")
"""The others take hours."""
REPLAYED = {"12": 12, "20": 20}
"""Trials after which a replayed search is looked at, by what the table says."""


@dataclass(frozen=True, slots=True)
class DomainScores:
    """Of one simulator in one domain. picks: by what was learned of the domain; empty where few
    were picked. behind f64[seeds, trials]: of replays; empty where few strategies were measured.
    """

    picks: dict[str, PickScores]
    behind: F64


def score_picks(pool: MeasuredPool, predictor: Predictor) -> dict[str, PickScores]:
    """By what was learned of the domain; empty for a domain with few picks."""
    judged, taught = judged_picks(pool)
    if len(judged) < TOP:
        return {}
    labels, found = pool.trials.step_seconds, {}
    for words, tried in taught.items():
        predicted, _ = predictor(pool.trials.features, tried, labels[tried], judged)
        found[words] = judge_picks(predicted, labels[judged], float(labels.min()))
    return found


def others_of(
    pool: MeasuredPool, pools: Sequence[MeasuredPool], same_graph: bool
) -> list[LabelledTrials]:
    """The trials of all other domains. same_graph: also of those of the same model."""
    return [
        each.trials
        for each in pools
        if each is not pool and (same_graph or each.graph != pool.graph)
    ]


def score(
    pool: MeasuredPool,
    pools: Sequence[MeasuredPool],
    simulator: Predictors,
    is_taught: bool,
    seeds: int,
) -> DomainScores:
    """is_taught: by the other pools."""
    known, others = (others_of(pool, pools, same) if is_taught else [] for same in (True, False))
    picks, behind = score_picks(pool, simulator(known)), replays(pool, simulator, others, seeds)
    return DomainScores(picks, behind)


def perfect(pool: MeasuredPool, seeds: int) -> DomainScores:
    """Of a predictor that knows the labels; its picks are judged by labels of the domain's noise,
    and its trials are single passes."""
    labels, noise = pool.trials.step_seconds, pool.measured.noise
    judged, _ = judged_picks(pool)
    picks = {}
    if noise is not None and len(judged) >= TOP:
        picks = dict.fromkeys(REPLAYED, perfect_scores(labels, judged, noise))

    def knows(features: StrategyFeatures, tried: I64, seconds: F64, asked: I64) -> tuple[F64, F64]:
        return labels[asked], np.zeros(len(asked))

    behind = replays(pool, lambda known: knows, [], seeds)
    return DomainScores(picks, behind)


def replays(
    pool: MeasuredPool, simulator: Predictors, known: Sequence[LabelledTrials], seeds: int
) -> F64:
    """By how much each answer is behind, f64[seeds, trials]; empty for a small domain."""
    trials = max(REPLAYED.values())
    if len(pool.measured) < LEAST_STRATEGIES or not seeds:
        return np.empty((0, trials))
    predictor = simulator(known)
    return np.array([replay(pool, predictor, trials, seed) for seed in range(seeds)])


def table_lines(name: str, known: str, scores: Sequence[DomainScores]) -> list[str]:
    """Of one simulator, a line for each set of trials."""
    lines = []
    for words in next((each.picks for each in scores if each.picks), {}):
        picks = pick_line([each.picks[words] for each in scores if each.picks])
        replayed = " | " if words not in REPLAYED else _replayed(scores, REPLAYED[words])
        lines.append(f"| {name} | {known} | {words} | {picks} | {replayed} |")
    return lines


def _replayed(scores: Sequence[DomainScores], trials: int) -> str:
    curves = [each.behind[:, trials - 1] for each in scores if len(each.behind)]
    if not curves:
        return " | "
    means = [float(curve.mean()) for curve in curves]
    errors = [float(curve.var(ddof=1)) / len(curve) if len(curve) > 1 else 0.0 for curve in curves]
    error = np.sqrt(sum(errors)) / len(errors)
    return f"{100 * np.mean(means):.2f} ± {100 * error:.2f} % | {100 * max(means):.2f} %"


def evaluate(
    pools: Sequence[MeasuredPool],
    asked: Sequence[MeasuredPool],
    names: Sequence[str],
    seeds: int,
) -> None:
    """Print the table; a row stands there as soon as it is known."""
    replayed = ("replay's answer behind the best", "worst domain")
    columns = ("simulator", "other domains", "trials", *PICK_COLUMNS, *replayed)
    print_head(*columns)
    for name in names:
        for is_taught in (True, False) if name != "timeline" else (False,):
            scores = [score(pool, pools, SIMULATORS[name], is_taught, seeds) for pool in asked]
            known = "yes" if is_taught else "no"
            print("\n".join(table_lines(name, known, scores)), flush=True)
    print("\n".join(table_lines("perfect predictor", "", [perfect(p, seeds) for p in asked])))


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("datasets/runtimes"))
    parser.add_argument("--simulators", nargs="+", choices=SIMULATORS, default=list(QUICK))
    parser.add_argument("--domains", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=12, help="of the replays; 0: none")
    parser.add_argument(
        "--published", action="store_true", help="networks alone, by AutoSync's settings, as well"
    )
    given = parser.parse_args()
    pools = [pool_of(each) for each in load_dataset(given.folder)]
    known = {pool.name for pool in pools}
    if missing := set(given.domains) - known:
        parser.error(f"no domain {min(missing)!r}; there are {'; '.join(sorted(known))}")
    asked = [pool for pool in pools if not given.domains or pool.name in given.domains]
    names = [*given.simulators, *(n for n in SIMULATORS if given.published and "published" in n)]
    evaluate(pools, asked, list(dict.fromkeys(names)), given.seeds)


if __name__ == "__main__":
    main()
