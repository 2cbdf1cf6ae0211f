"""Plays searches against each other on the bundled measurements; nothing is measured.

    python -m benchmarks.contest.replayed_contest [-o FOLDER] [--jobs 1] [--minutes 20]
        [--domains "vgg16, example-4x1-40gbe" ...] [--ablations timeline ...] [--seeds 3]

A search tries 60 of a domain's measured strategies in the rounds of a tuning, and refits
after each. A seed leaves it nine tenths of the pool and says which of two passes each trial
returns. `replayed_searchers` lists the ablations. With hand-designed strategies (DDP and the most
promising first, others as they earn their trial) the timeline and the usual learner play budgets of
12, 20 and 60, for a tuning divides its budget.

Transferred simulators have learned from the domains of other models alone, the first seed's weights
for all. Networks (LSTM, GAT, the ensemble of all) take minutes each and come last.

FOLDER (by default benchmarks/contest/records): a file for each domain, a line for each search that
is done, which is not done again. The page is written by benchmarks.contest.contest_page.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autosync.documents import from_json, to_json
from autosync.search.loop.confirm import FINALISTS
from autosync.search.loop.proposing import ROUND_TRIALS
from autosync.search.loop.settings import Settings
from benchmarks.contest import RECORDS
from benchmarks.contest.contest_pools import (
    DDP,
    SEED_SHARE,
    ContestPool,
    contest_pools,
    contested,
)
from benchmarks.contest.replayed_searchers import ABLATIONS, Ablation, Searcher, taught

BUDGETS = (12, 20, 60)


class Match(NamedTuple):
    """What is played: `seed` by `seed`."""

    ablation: Ablation
    designs: bool
    budget: int
    seed: int


@dataclass(frozen=True, slots=True)
class ReplayedSearch:
    """trial_seconds: as the trials returned them, in their order; label_seconds: the best estimates
    of the same strategies. baseline_seconds, fastest_seconds: of the pool; reachable_seconds: of
    the fastest that the search could try."""

    domain: str
    ablation: str
    designs: bool
    budget: int
    seed: int
    strategies: int
    trial_seconds: tuple[float, ...]
    label_seconds: tuple[float, ...]
    baseline_seconds: float
    fastest_seconds: float
    reachable_seconds: float

    @property
    def best_seconds(self) -> tuple[float, ...]:
        """What a tuning would answer after each trial: the best of the three that were fastest in
        their trials, as the confirmation finds it by many repeats."""
        order = np.argsort(self.trial_seconds, kind="stable")
        found = []
        for count in range(1, len(order) + 1):
            finalists = order[order < count][:FINALISTS]
            found.append(min(self.label_seconds[each] for each in finalists))
        return tuple(found)


def matches(ablations: Sequence[Ablation], seeds: int) -> Iterator[Match]:
    for ablation in ablations:
        for seed in range(seeds):
            yield Match(ablation, False, BUDGETS[-1], seed)
            for budget in BUDGETS if ablation.beside_designs else ():
                yield Match(ablation, True, budget, seed)


def play(pool: ContestPool, searcher: Searcher, match: Match) -> ReplayedSearch:
    """One search. Without designs those of the pool are not to be had."""
    rng = np.random.default_rng(match.seed)
    there = np.flatnonzero(match.designs | ~pool.designed)
    there = np.sort(rng.permutation(there)[: round(SEED_SHARE * len(there))])
    ddp = pool.measured.origins.index(DDP)
    if match.designs:
        there = np.union1d(there, [ddp])
    trial_seconds = pool.passes[rng.integers(2, size=len(pool)), np.arange(len(pool))]
    tried = np.array([ddp] if match.designs else [], dtype=np.int64)
    while len(tried) < min(match.budget, len(there)):
        rest, count = np.setdiff1d(there, tried), ROUND_TRIALS
        if match.designs and len(tried) == 1:
            rest = rest[pool.designed[rest]]
            count = min(Settings().first_designs, match.budget // 2) - 1
        elif match.designs:
            designs, rest = rest[pool.designed[rest]], rest[~pool.designed[rest]]
            count = min(count, match.budget - len(tried))
            most = int(count * Settings().design_share)
            earned = searcher.earned_designs(designs, tried, trial_seconds[tried], most)
            tried, count = np.concatenate((tried, earned)), count - len(earned)
        count = min(count, len(rest), match.budget - len(tried))
        picks = searcher.next_trials(rest, tried, trial_seconds[tried], count, rng)
        tried = np.concatenate((tried, picks))
    return ReplayedSearch(
        pool.name,
        match.ablation.name,
        match.designs,
        match.budget,
        match.seed,
        len(pool),
        tuple(trial_seconds[tried].tolist()),
        tuple(pool.trials.step_seconds[tried].tolist()),
        pool.baseline_seconds,
        float(pool.trials.step_seconds.min()),
        float(pool.trials.step_seconds[there].min()),
    )


def file_of(folder: Path, domain: str) -> Path:
    return folder / "replayed" / f"{domain.replace(', ', '-')}.jsonl"


def read_searches(folder: Path) -> list[ReplayedSearch]:
    """All that are done."""
    return [
        from_json(ReplayedSearch, line, source=file.name)
        for file in sorted((folder / "replayed").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]


def play_domain(
    name: str, ablations: Sequence[str], seeds: int, folder: Path, deadline: float
) -> str:
    """Play what is not done of a domain, until `deadline` (`time.time`). Returns what is left."""
    asked = [each for each in ABLATIONS if each.name in ablations]
    done = {
        (each.ablation, each.designs, each.budget, each.seed)
        for each in read_searches(folder)
        if each.domain == name
    }
    left = [
        match for match in matches(asked, seeds) if (match.ablation.name, *match[1:]) not in done
    ]
    if not left:
        return f"{name}: done before"
    pools = contest_pools(with_shards=any(match.ablation.networks for match in left))
    pool = next(each for each in pools if each.name == name)
    file = file_of(folder, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    searcher: Searcher | None = None
    for number, match in enumerate(left):
        if time.time() > deadline:
            return f"{name}: {len(left) - number} of {len(left)} searches left"
        if searcher is None or searcher.ablation is not match.ablation:
            searcher = Searcher(match.ablation, pool, taught(match.ablation, pool, pools), {})
            print(
                f"{name}: {match.ablation.name}, search {number + 1} of {len(left)}, "
                f"{deadline - time.time():.0f} s left",
                flush=True,
            )
        found = play(pool, searcher, match)
        with file.open("a") as lines:
            lines.write(to_json(found) + "\n")
    return f"{name}: done"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [each.name for each in ABLATIONS]
    parser.add_argument("-o", "--out", type=Path, default=RECORDS, metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=1, help="processes, a domain each")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no search after so many")
    parser.add_argument("--domains", nargs="+", metavar="NAME", help="else all")
    parser.add_argument("--ablations", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    known = [pool.name for pool in contested(contest_pools(with_shards=False))]
    for name in given.domains or ():
        if name not in known:
            raise SystemExit(f"no domain {name!r}; there are {'; '.join(known)}")
    chosen = [each for each in ABLATIONS if each.name in given.ablations]
    quick = [each for each in chosen if not each.networks]
    slow = [each for each in chosen if each.networks]
    deadline = time.time() + 60 * given.minutes
    tasks = [
        (name, [e.name for e in asked], given.seeds, given.out, deadline)
        for asked in (quick, slow)
        if asked
        for name in given.domains or known
    ]
    if given.jobs == 1:
        for task in tasks:
            print(play_domain(*task), flush=True)
        return
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as workers:
        for ended in workers.map(play_domain, *zip(*tasks, strict=True)):
            print(ended, flush=True)


if __name__ == "__main__":
    main()
