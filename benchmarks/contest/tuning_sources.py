"""What each source of proposals came to in the live contest's tunings; nothing is measured.

    python -m benchmarks.contest.tuning_sources [-o FOLDER] [--budgets 12 20 60]

Reads the tunings that `live_contest` left in FOLDER (by default benchmarks/contest/records; they
are kept beside the records that are committed). Of every domain and source, of the rounds after the
first: trials; how many were faster than all before their round; medians of measured over that
fastest, and of measured over predicted. Strategies in which some variables are all-reduced while
others have servers are counted apart (`mixed`): see docs/simulator.md.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autosync.documents import from_json
from autosync.search.loop.tuning_store import FOUND_BY_SEARCH, Proposal
from autosync.strategy import AllReduce, ParameterServer, Strategy
from autosync.trials.contract import TrialResult
from benchmarks.contest import RECORDS
from benchmarks.contest.contest_ring import COUNTS
from benchmarks.contest.live_records import whole_lines


class SourceTrial(NamedTuple):
    """over_best, over_predicted: measured seconds over those of the fastest before the round, and
    over what was predicted."""

    domain: str
    source: str
    mixed: bool
    over_best: float
    over_predicted: float


def trials_of(tuning: Path) -> Iterator[SourceTrial]:
    """Of one tuning's file, in its order, failed ones and the first round left out."""
    proposals: dict[str, Proposal] = {}
    best, before, number = np.inf, np.inf, 0
    for line in whole_lines(tuning):
        kind, _, document = line.partition(" ")
        if kind == "proposal":
            proposal = from_json(Proposal, document, tuning.name)
            proposals[proposal.key] = proposal
            continue
        result = from_json(TrialResult, document, tuning.name)
        asked = proposals[result.key]
        if asked.phase != "search" or result.step_seconds is None:
            continue
        if asked.round != number:
            number, before = asked.round, best
        best = min(best, result.step_seconds)
        if number > 0:
            origin = asked.candidate.origin
            yield SourceTrial(
                tuning.name.partition(".")[0],
                origin if origin in FOUND_BY_SEARCH else "designs",
                is_mixed(asked.candidate.strategy),
                result.step_seconds / before,
                result.step_seconds / asked.candidate.predicted_seconds,
            )


def is_mixed(strategy: Strategy) -> bool:
    """Whether it has both servers and all-reduces."""
    kinds = {type(shard) for choice in strategy.choices for shard in choice.shards}
    return {AllReduce, ParameterServer} <= kinds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=RECORDS, metavar="FOLDER")
    parser.add_argument("--budgets", nargs="+", type=int, default=COUNTS, metavar="TRIALS")
    given = parser.parse_args()
    groups: dict[tuple[str, str, bool], list[SourceTrial]] = defaultdict(list)
    for budget in given.budgets:
        for tuning in sorted((given.out / "live").glob(f"*.autosync_{budget}.jsonl")):
            for trial in trials_of(tuning):
                groups[trial[:3]].append(trial)
    if not groups:
        raise SystemExit(
            f"no tunings in {given.out / 'live'}: python -m benchmarks.contest.live_contest "
            "plays them."
        )
    print("| domain | source | mixed | trials | faster | over the fastest | over predicted |")
    print("|---|---|---|---|---|---|---|")
    for (domain, source, mixed), trials in sorted(groups.items()):
        best, predicted = (np.array([each[field] for each in trials]) for field in (3, 4))
        print(
            f"| {domain} | {source} | {'yes' if mixed else ''} | {len(trials)} "
            f"| {int((best < 1).sum())} | {np.median(best):.3f} | {np.median(predicted):.3f} |"
        )


if __name__ == "__main__":
    main()
