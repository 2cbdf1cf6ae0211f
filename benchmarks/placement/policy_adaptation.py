"""How soon a policy that was trained on other graphs finds what a new one ends with, in the form of
HeteroG's table 6.

python -m benchmarks.placement.policy_adaptation [--cluster NAME] [--models NAME ...]
    [--evaluations N] [--seeds N] [--domains N] [--passes N] [--rounds N]

First a policy is trained on drawn domains (`policy_pretraining`) of bundled graphs; it sees neither
the graphs that it is adapted to, nor their families, nor the cluster. Both begin from the best
hand-designed strategy; the goal is what the new policy ends with, within a hundredth. Seconds are
of one core: the whole run's, by the share of the evaluations until the goal.
"""

import argparse
import time
from collections.abc import Sequence
from copy import deepcopy
from math import exp, log
from statistics import median

import torch

from autosync.domain import Domain
from autosync.extensions.placement.policy import (
    PlacementPolicy,
    PolicySettings,
    PolicyTask,
    policy_task,
    train_policy,
)
from autosync.extensions.placement.proposals import JudgedPlacement, PlacementJudge
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from benchmarks.placement.placement_domains import MODELS, domain_of, without_placement
from benchmarks.placement.policy_pretraining import drawn_tasks, pretrain

WITHIN = 1.01
"""Of the goal's seconds: reached."""


def trained(domains: int, passes: int, rounds: int) -> PlacementPolicy:
    """Prints after each pass how many domains have a placement that fits, and their mean gain."""
    settings = PolicySettings()
    torch.manual_seed(settings.seed)
    policy = PlacementPolicy()
    for gains in pretrain(policy, drawn_tasks(domains, settings), passes, rounds, settings):
        logarithms = [log(each) for each in gains if each]
        print(
            f"pretraining, {time.process_time():.0f} CPU seconds: {len(logarithms)} of "
            f"{len(gains)} fit, {exp(sum(logarithms) / len(logarithms)):.3f} times as fast",
            flush=True,
        )
    return policy


def adapted(
    domain: Domain, base: Strategy, policy: PlacementPolicy, budget: int, seed: int
) -> tuple[PolicyTask, float]:
    """The task, and CPU seconds of an evaluation with its share of the learning."""
    settings = PolicySettings(seed=seed)
    task = policy_task(domain, TimelineSimulator(), base, settings)
    started = time.process_time()
    train_policy(policy, [task], budget, settings)
    return task, (time.process_time() - started) / budget


def reached(task: PolicyTask, goal: JudgedPlacement) -> int | None:
    """Evaluations until the goal; None: never."""
    return next((count for count, best in task.curve if _is_at(best, goal)), None)


def _is_at(best: JudgedPlacement, goal: JudgedPlacement) -> bool:
    return best.excess <= goal.excess and best.step_seconds <= goal.step_seconds * WITHIN


def report(model: str, cluster: str, pretrained: PlacementPolicy, budget: int, seeds: int) -> None:
    domain = domain_of(model, cluster)
    base = without_placement(PlacementJudge(domain, TimelineSimulator()))[1].strategy
    rows: list[tuple[int | None, float, int | None, float, float]] = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        alone, each_alone = adapted(domain, base, PlacementPolicy(), budget, seed)
        again, each_again = adapted(domain, base, deepcopy(pretrained), budget, seed)
        first, then = reached(alone, alone.best), reached(again, alone.best)
        ratio = again.best.step_seconds / alone.best.step_seconds
        rows.append((first, each_alone, then, each_again, ratio))
    print(
        f"| {model} | {_shown([(row[0], row[1]) for row in rows])} "
        f"| {_shown([(row[2], row[3]) for row in rows])} "
        f"| {median(row[4] for row in rows):.3f} |",
        flush=True,
    )


def _shown(found: Sequence[tuple[int | None, float]]) -> str:
    """Evaluations and CPU seconds of each seed."""
    return ", ".join(
        "never" if count is None else f"{count} ({count * seconds:.1f})" for count, seconds in found
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="heterog-8-gpus")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--evaluations", type=int, default=512)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--domains", type=int, default=18)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    torch.set_num_threads(1)
    pretrained = trained(given.domains, given.passes, given.rounds)
    print("| model | new: evaluations (CPU seconds) | pretrained | its best over the new one's |")
    for model in given.models:
        report(model, given.cluster, pretrained, given.evaluations, given.seeds)


if __name__ == "__main__":
    main()
