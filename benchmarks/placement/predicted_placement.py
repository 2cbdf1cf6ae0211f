"""HeteroG's comparisons in the timeline, in the form of its tables 4 and 7: even and proportional
replicas by servers and by all-reduce, the search without placements, and with them.

python -m benchmarks.placement.predicted_placement [--cluster NAME] [--models NAME ...]
    [--proposers NAME ...] [--evaluations N] [--seeds N] [--large]

Predictions only (`placement_domains`). Every proposer begins from the best hand-designed strategy
that modules can be placed in and has the same number of evaluations; `both` has half of them for
the plain proposer and half for the policy, as the search takes the better answer. `chance` is the
policy's draws without its learning. --large: models that no device holds whole.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from autosync.domain import Domain
from autosync.extensions.placement.document import modules_of
from autosync.extensions.placement.policy import PolicySettings, learned_placement
from autosync.extensions.placement.proposals import JudgedPlacement, PlacementJudge, place_greedily
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Schedule, Strategy
from autosync.strategy_description import describe
from benchmarks.placement.placement_domains import (
    LARGE,
    MODELS,
    baselines,
    domain_of,
    without_placement,
)

PROPOSERS = ("plain", "chance", "policy", "both")

Proposer = Callable[[Strategy, int, int], JudgedPlacement]
"""Of a base, a budget of evaluations and a seed."""


def proposers(domain: Domain) -> dict[str, Proposer]:
    simulator = TimelineSimulator()

    def greedy(base: Strategy, budget: int, seed: int) -> JudgedPlacement:
        return place_greedily(PlacementJudge(domain, simulator), base, budget)

    def chance(base: Strategy, budget: int, seed: int) -> JudgedPlacement:
        settings = PolicySettings(seed=seed, chance=1.0)
        return learned_placement(domain, simulator, base, budget, settings=settings)

    def policy(base: Strategy, budget: int, seed: int) -> JudgedPlacement:
        settings = PolicySettings(seed=seed)
        return learned_placement(domain, simulator, base, budget, settings=settings)

    def both(base: Strategy, budget: int, seed: int) -> JudgedPlacement:
        found = [proposer(base, budget // 2, seed) for proposer in (greedy, policy)]
        return min(found, key=lambda each: each.rank)

    return {"plain": greedy, "chance": chance, "policy": policy, "both": both}


def shown(found: Sequence[JudgedPlacement]) -> str:
    """The middle one, with the best and the worst where they differ."""
    ordered = sorted(found, key=lambda each: each.rank)
    middle, best, worst = (_text(ordered[i]) for i in (len(ordered) // 2, 0, -1))
    return middle if best == worst else f"{middle} ({best} to {worst})"


def _text(found: JudgedPlacement) -> str:
    return f"{found.step_seconds * 1e3:.1f}" if found.fits else f"OOM by {found.excess:.0%}"


def compare(model: str, cluster: str, names: Sequence[str], budget: int, seeds: int) -> None:
    domain = domain_of(model, cluster)
    judge = PlacementJudge(domain, TimelineSimulator())
    named = baselines(domain)
    rows = {
        name: [found] for name, found in zip(named, judge.judge(list(named.values())), strict=True)
    }
    best, base = without_placement(judge)
    rows["search without"] = [best]
    spent: dict[str, float] = {}
    for name, proposer in proposers(domain).items():
        if name not in names:
            continue
        started = time.process_time()
        runs = 1 if name == "plain" else seeds
        rows[name] = [proposer(base.strategy, budget, seed) for seed in range(runs)]
        spent[name] = (time.process_time() - started) / runs
    print(f"{model} on {cluster}, ms an iteration (base {_text(base)}):", flush=True)
    for name, found in rows.items():
        took = f"; {spent[name]:.1f} CPU seconds" if name in spent else ""
        print(f"  {name:15} {shown(found)}{took}", flush=True)
    print(f"  | {model} | " + " | ".join(shown(found) for found in rows.values()) + " |")
    for name in spent:
        middle = sorted(rows[name], key=lambda each: each.rank)[len(rows[name]) // 2]
        print(f"  {name}: {describe(middle.strategy, domain)}", flush=True)
        print(f"    {where(middle)}", flush=True)
    winner = min((each for found in rows.values() for each in found), key=lambda each: each.rank)
    order_matters(model, judge, winner)


def where(found: JudgedPlacement) -> str:
    return ", ".join(
        f"{placed.module} on {placed.ranks[0] if len(placed.ranks) == 1 else placed.ranks}"
        for placed in modules_of(found.strategy)
    )


def order_matters(model: str, judge: PlacementJudge, found: JudgedPlacement) -> None:
    """Table 7's form: the order of the best beside messages as gradients get ready."""
    schedule = Schedule("fifo", found.strategy.schedule.slice_bytes)
    if found.strategy.schedule.order in ("fifo", "ddp") or found.strategy.engine is not None:
        print(f"  order: {found.strategy.schedule.order} already", flush=True)
        return
    fifo = judge.judge([replace(found.strategy, schedule=schedule)])[0]
    gain = fifo.step_seconds / found.step_seconds - 1
    print(
        f"  order: | {model} | {found.step_seconds * 1e3:.1f} | {fifo.step_seconds * 1e3:.1f} | "
        f"{gain:.1%} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="heterog-8-gpus")
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--proposers", nargs="+", default=list(PROPOSERS), choices=PROPOSERS)
    parser.add_argument("--evaluations", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--large", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for model in given.models or (LARGE if given.large else MODELS):
        compare(model, given.cluster, given.proposers, given.evaluations, given.seeds)


if __name__ == "__main__":
    main()
