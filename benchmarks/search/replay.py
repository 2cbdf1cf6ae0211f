"""Prints what rules of selection find, replayed on the bundled measurements; nothing is measured.

    python -m benchmarks.search.replay [--seeds 5] [--jobs 2] [-o FILE.json]

A tuning may try a random part of a domain's measured strategies, a round of 4 after another, 20 in
all, with or without the hand-designed ones. The simulator that learns (process and trees) begins
with what the domains of other models taught it. A figure is by how much the fastest of so many
trials is slower than the fastest that could be tried: the mean over domains and seeds.

Last, for each domain the rule that is best on all others after 12 trials, judged on that domain:
what choosing a rule by this table is worth. And where tunings would end that stop once the best
proposal is expected to gain less than a share.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.search.replayed_pools import (
    BUDGET,
    F64,
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
    """tunings: of each rule by its name, with hand-designed strategies and without (bool)."""

    domain: str
    noise: float
    tunings: dict[tuple[str, bool], list[ReplayedTuning]]

    def regret(self, rule: str, designs: bool, trials: int) -> float:
        return float(np.mean([each.regret(trials) for each in self.tunings[rule, designs]]))


def replay_domain(number: int, seeds: int) -> DomainReplays:
    """A domain's tunings; each process loads the measurements itself."""
    pools = replay_pools()
    pool = pools[number]
    simulator, known = trained_without(pools, pool), dict[bytes, tuple[F64, F64]]()
    tunings = {
        (rule.name, designs): [
            replay_tuning(pool, simulator, rule, seed, designs, known) for seed in range(seeds)
        ]
        for rule in RULES
        for designs in (True, False)
    }
    print(f"{pool.name}: {len(known)} refits", file=sys.stderr, flush=True)
    return DomainReplays(pool.name, pool.noise, tunings)


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
    tunings = [each for domain in found for each in domain.tunings[rule, True]]
    for least in (0.0, *LEAST_GAINS):
        ends = [each.stopped_at(least) for each in tunings]
        regret = np.mean([each.regret(end) for each, end in zip(tunings, ends, strict=True)])
        print(f"| {least:.1%} | {np.mean(ends):.1f} | {regret:.2%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("-o", "--out", type=Path, help="every regret as JSON")
    given = parser.parse_args()
    count = len(replay_pools())
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as workers:
        found = list(workers.map(replay_domain, range(count), [given.seeds] * count))
    print(f"{count} domains, {given.seeds} seeds; noise of a label: ")
    print(", ".join(f"{each.domain} {each.noise / 2:.1%}" for each in found))
    for designs in (True, False):
        print_rules(found, designs)
        print_chosen_elsewhere(found, designs)
    print_stopping(found, "learned, lower bound, alpha 0.5")
    if given.out:
        rows = [
            [each.domain, rule, designs, [[t.regret(n) for n in COUNTS] for t in tunings]]
            for each in found
            for (rule, designs), tunings in each.tunings.items()
        ]
        given.out.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
