"""Evaluates simulators on measured domains; prints one table, and nothing is measured.

    python -m benchmarks.evaluation.evaluate [datasets/runtimes] [--simulators learned lstm ...]
        [--untransferred] [--seeds 3] [--domains "vgg16, example-4x1-40gbe" ...]

Picks: what searches picked in each domain, ranked by simulators that learned from all other domains
(kernel and all else included), before its first trial, after the 12 trials of a small tuning and
after 20 (`pick_scores`). Replay: by how much the answer of a search of the domain's measured
strategies, without hand-designed ones, is slower than the fastest of them after 12 and 20 trials
(`replay`), with simulators that learned from the domains of other models alone. Means over domains.
`--untransferred`: simulators know no other domain.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autosync.simulator.learned.learned_simulator import LabelledTrials
from autosync.simulator.runtime_dataset import load_dataset
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
from benchmarks.evaluation.predictors import PREDICTORS, Predictor
from benchmarks.evaluation.replay import LEAST_STRATEGIES, replay

REPLAYED = (12, 20)
"""Trials after which a replayed search is looked at."""


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


def print_picks(
    pools: Sequence[MeasuredPool], asked: Sequence[MeasuredPool], names: Sequence[str], alone: bool
) -> None:
    print(f"| simulator | trials | {' | '.join(PICK_COLUMNS)} |")
    print(f"|---|---|{'---|' * len(PICK_COLUMNS)}")
    for name in names:
        scores = []
        for pool in asked:
            predictor = PREDICTORS[name]([] if alone else others_of(pool, pools, True))
            scores.append(score_picks(pool, predictor))
        for words in scores[0]:
            of_words = [each[words] for each in scores if each]
            print(f"| {name} | {words} | {pick_line(of_words)} |", flush=True)
    perfect = [
        perfect_scores(pool.trials.step_seconds, judged_picks(pool)[0], pool.measured.noise)
        for pool in asked
        if pool.measured.noise is not None and len(pool.measured.picks)
    ]
    if perfect:
        print(f"| perfect predictor |  | {pick_line(perfect)} |", flush=True)


def print_replay(
    pools: Sequence[MeasuredPool],
    asked: Sequence[MeasuredPool],
    names: Sequence[str],
    seeds: int,
    alone: bool,
) -> None:
    print(f"\n| replayed by | {' | '.join(f'{n} trials | worst domain' for n in REPLAYED)} |")
    print(f"|---|{'---|' * 2 * len(REPLAYED)}")
    large = [pool for pool in asked if len(pool.measured) >= LEAST_STRATEGIES]
    for name in ("random", *names) if large else ():
        curves = []
        for pool in large:
            others = [] if alone else others_of(pool, pools, False)
            predictor = None if name == "random" else PREDICTORS[name](others)
            runs = [replay(pool, predictor, REPLAYED[-1], seed) for seed in range(seeds)]
            curves.append(np.mean(runs, axis=0)[[n - 1 for n in REPLAYED]])
        figures = zip(np.mean(curves, axis=0), np.max(curves, axis=0), strict=True)
        cells = " | ".join(f"{100 * mean:.2f} % | {100 * worst:.2f} %" for mean, worst in figures)
        print(f"| {name} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("datasets/runtimes"))
    parser.add_argument(
        "--simulators", nargs="+", choices=PREDICTORS, default=["timeline", "linear", "learned"]
    )
    parser.add_argument("--untransferred", action="store_true")
    parser.add_argument("--domains", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3, help="of the replays")
    given = parser.parse_args()
    pools = [pool_of(each) for each in load_dataset(given.folder)]
    asked = [pool for pool in pools if not given.domains or pool.name in given.domains]
    print_picks(pools, asked, given.simulators, given.untransferred)
    print_replay(pools, asked, given.simulators, given.seeds, given.untransferred)


if __name__ == "__main__":
    main()
