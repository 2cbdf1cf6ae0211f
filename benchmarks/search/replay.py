"""Prints what rules of selection find, replayed on the bundled measurements; nothing is measured.

    python -m benchmarks.search.replay [--seeds 5] [--jobs 2] [--domains 0 1 ...] [-o FOLDER]

A tuning may try a random part of a domain's measured strategies, a round of 4 after another, 20 in
all, with or without the hand-designed ones. The simulator that learns (process and trees) begins
with what the domains of other models taught it. A figure is by how much the fastest of so many
trials is slower than the fastest that could be tried: the mean over domains and seeds.

Last, for each domain the rule that is best on all others after 12 trials, judged on that domain:
what choosing a rule by this table is worth. And where tunings would end that stop once the best
proposal is expected to gain less than a share.

-o: a file for each domain, written once it is done; what is there is not replayed again.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from autosync.documents import from_json, to_json
from benchmarks.search.replayed_pools import (
    BUDGET,
    Predictions,
    ReplayedTuning,
    SelectionRule,
    replay_pools,
    replay_tuning,
    trained_without,
)

COUNTS = (4, 8, 12, BUDGET)
LEAST_GAINS = (0.002, 0.005, 0.01, 0.02)
RULES = (
    SelectionRule("timeline", False, "prediction", 0.0),
    SelectionRule("timeline, alpha 0.5", False, "prediction", 0.5),
    SelectionRule("learned", True, "prediction", 0.0),
    SelectionRule("learned, lower bound", True, "lower_bound", 0.0),
    SelectionRule("learned, expected improvement", True, "expected_improvement", 0.0),
    SelectionRule("learned, alpha 0.5", True, "prediction", 0.5),
    SelectionRule("learned, lower bound, alpha 0.2", True, "lower_bound", 0.2),
    SelectionRule("learned, lower bound, alpha 0.5", True, "lower_bound", 0.5),
    SelectionRule("learned, lower bound, alpha 0.5, tried counted", True, "lower_bound", 0.5, True),
    SelectionRule(
        "learned, expected improvement, alpha 0.5, tried counted",
        True,
        "expected_improvement",
        0.5,
        True,
    ),
)


@dataclass(frozen=True, slots=True)
class DomainReplays:
    """tunings: by `rule_key`, one a seed."""

    domain: str
    noise: float
    tunings: dict[str, tuple[ReplayedTuning, ...]]

    def regret(self, rule: str, designs: bool, trials: int) -> float:
        return float(
            np.mean([each.regret(trials) for each in self.tunings[rule_key(rule, designs)]])
        )


def replay_domain(number: int, seeds: int, folder: Path | None) -> DomainReplays:
    """A domain's tunings; each process loads the measurements itself."""
    file = None if folder is None else folder / f"{number}-{seeds}.json"
    if file is not None and file.exists():
        return from_json(DomainReplays, file.read_text(), source=file.name)
    pools = replay_pools()
    pool = pools[number]
    simulator, known = trained_without(pools, pool), dict[bytes, Predictions]()
    tunings = {
        rule_key(rule.name, designs): tuple(
            replay_tuning(pool, simulator, rule, seed, designs, known) for seed in range(seeds)
        )
        for rule in RULES
        for designs in (True, False)
    }
    print(f"{pool.name}: {len(known)} refits", file=sys.stderr, flush=True)
    replays = DomainReplays(pool.name, pool.noise, tunings)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(to_json(replays) + "\n")
    return replays


def rule_key(rule: str, designs: bool) -> str:
    return f"{rule}{', with designs' if designs else ''}"


def print_rules(found: Sequence[DomainReplays], designs: bool) -> None:
    print(f"\n{'With' if designs else 'Without'} hand-designed strategies")
    print("| rule | " + " | ".join(f"{count} trials" for count in COUNTS) + " | worst at 12 |")
    print("|---" * (len(COUNTS) + 2) + "|")
    for rule in RULES:
        by_count = [[each.regret(rule.name, designs, n) for each in found] for n in COUNTS]
        worst = max(each.regret(rule.name, designs, 12) for each in found)
        means = " | ".join(f"{np.mean(column):.2%}" for column in by_count)
        print(f"| {rule.name} | {means} | {worst:.2%} |")


def print_chosen_elsewhere(found: Sequence[DomainReplays], designs: bool) -> None:
    regrets, names = [], []
    for own in found:
        others = [each for each in found if each is not own]
        best = min(
            RULES,
            key=lambda rule: float(np.mean([e.regret(rule.name, designs, 12) for e in others])),
        )
        names.append(best.name)
        regrets.append([own.regret(best.name, designs, count) for count in COUNTS])
    means = " | ".join(f"{value:.2%}" for value in np.mean(regrets, axis=0))
    print(f"| the best on all other domains | {means} | |")
    print("  chosen: " + "; ".join(f"{n} ({names.count(n)})" for n in sorted(set(names))))


def print_stopping(found: Sequence[DomainReplays], rule: str) -> None:
    print(f"\nEnding early, {rule}, with hand-designed strategies")
    print("| least gain | trials | slower than the fastest |")
    print("|---|---|---|")
    tunings = [each for domain in found for each in domain.tunings[rule_key(rule, True)]]
    for least in (0.0, *LEAST_GAINS):
        ends = [each.stopped_at(least) for each in tunings]
        regret = np.mean([each.regret(end) for each, end in zip(tunings, ends, strict=True)])
        print(f"| {least:.1%} | {np.mean(ends):.1f} | {regret:.2%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--domains", type=int, nargs="+", help="by number, else all")
    parser.add_argument("-o", "--out", type=Path, help="folder of the domains' replays")
    given = parser.parse_args()
    chosen = given.domains or range(len(replay_pools()))
    replayed = partial(replay_domain, seeds=given.seeds, folder=given.out)
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as workers:
        found = list(workers.map(replayed, chosen))
    print(f"{len(found)} domains, {given.seeds} seeds; noise of a label: ")
    print(", ".join(f"{each.domain} {each.noise / 2:.1%}" for each in found))
    for designs in (True, False):
        print_rules(found, designs)
        print_chosen_elsewhere(found, designs)
    print_stopping(found, "learned, lower bound, alpha 0.5")


if __name__ == "__main__":
    main()
