"""What the proposers of placements find where plain replicas do not fit.

python -m benchmarks.placement.scarce_memory [--domains N] [--evaluations N] [--seeds N]

Of the domains that `policy_pretraining` draws, with a seed of their own, those whose devices lack
memory. `chance` is the policy's draws without its learning. Of what fits, how many times as fast as
the base, which does not fit; of what does not, what it lacks of all memory.
"""

import argparse
from dataclasses import replace

import torch

from autosync.extensions.placement.policy import (
    PolicySettings,
    PolicyTask,
    learned_placement,
)
from autosync.extensions.placement.proposals import JudgedPlacement, PlacementJudge, place_greedily
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.placement.policy_pretraining import drawn_tasks

DRAWN = 1000
"""Seed of the domains; that of those that a policy is trained on is 0."""


def report(task: PolicyTask, evaluations: int, seeds: int) -> None:
    domain, base = task.domain, task.base
    judge = PlacementJudge(domain, TimelineSimulator())
    plain = place_greedily(judge, base.strategy, evaluations)
    chance, learned = (
        [_learned(task, replace(settings, seed=seed), evaluations) for seed in range(seeds)]
        for settings in (PolicySettings(chance=1.0), PolicySettings())
    )
    shown = (", ".join(_gain(base, one) for one in found) for found in ([plain], chance, learned))
    place = f"{domain.graph.name}, {domain.world_size} devices, {domain.cluster.backend}"
    print(f"| {place} | {' | '.join(shown)} |", flush=True)


def _learned(task: PolicyTask, settings: PolicySettings, evaluations: int) -> JudgedPlacement:
    domain, base = task.domain, task.base.strategy
    return learned_placement(domain, TimelineSimulator(), base, evaluations, settings=settings)


def _gain(base: JudgedPlacement, found: JudgedPlacement) -> str:
    if not found.fits:
        return f"lacks {found.excess:.1%}"
    return f"{base.step_seconds / found.step_seconds:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--domains", type=int, default=7, help="drawn; a third of them lack memory")
    parser.add_argument("--evaluations", type=int, default=192)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| | plain proposer | chance | policy |")
    print("|---|---|---|---|")
    for task in drawn_tasks(given.domains, PolicySettings(seed=DRAWN)):
        if not task.base.fits:
            report(task, given.evaluations, given.seeds)


if __name__ == "__main__":
    main()
