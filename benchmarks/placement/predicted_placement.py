"""HeteroG's comparisons in the timeline: even and proportional replicas by servers and by
all-reduce, the search without placements, and with them.

python -m benchmarks.placement.predicted_placement [--cluster NAME] [--models NAME ...]
    [--budget N] [--adapt] [--large]

Predictions only. Compute is a roofline of a V100's, other devices by their published peaks; a
model's batch is its usual one on every replica. --large: models that no device holds whole.
--adapt: how soon a policy that was trained on the other models finds what one trained from nothing
ends with.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from autosync.cluster_file import load_cluster
from autosync.domain import Domain, Optimizer
from autosync.models import bundled
from autosync.profiling import estimate_profile
from autosync.search.designs import known_designs
from autosync.search.designs.design_table import hand_designed
from autosync.search.designs.list_schedule import list_schedule
from autosync.search.domain_facts import replica_layouts
from autosync.search.placement.greedy_placement import place_greedily
from autosync.search.placement.placement_judge import JudgedPlacement, PlacementJudge
from autosync.search.placement.policy_network import PlacementPolicy
from autosync.search.placement.policy_training import (
    PolicySettings,
    PolicyTask,
    learned_placement,
    policy_task,
    train_policy,
)
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Schedule, Strategy
from autosync.strategy_description import describe

MODELS = ("vgg19", "transformer", "bert_large", "ncf_dense")
LARGE = ("bert_48l", "xlnet_48l")
UNEVEN = Space(uneven_shares=True)
WITHIN = 1.01
"""Of the best seconds from nothing: found again when a policy comes so near."""


def domain_of(model: str, cluster: str) -> Domain:
    graph = bundled(model)
    return Domain(
        graph, load_cluster(cluster), estimate_profile(graph, "v100"), Optimizer("adam", True, 2)
    )


def baselines(domain: Domain) -> dict[str, Strategy]:
    """HeteroG's four, section 6.1."""
    layouts = replica_layouts(domain, UNEVEN)
    found = {
        "EV-PS": known_designs.ps_load_balanced(domain),
        "EV-AR": known_designs.all_reduce_25mb(domain),
    }
    if len(layouts) > 1:
        found |= {
            name.replace("EV", "CP"): replace(strategy, replicas=layouts[1])
            for name, strategy in dict(found).items()
        }
    return found


def without_placement(judge: PlacementJudge) -> JudgedPlacement:
    """The best hand-designed strategy, even or proportional."""
    strategies = [
        strategy
        for _, strategy in hand_designed(judge.domain, UNEVEN)
        if strategy.schedule.order != "ddp"
    ]
    return min(judge.judge(strategies), key=lambda each: each.rank)


def shown(found: JudgedPlacement, beside: float) -> str:
    if not found.fits:
        return f"out of memory by {found.excess:.0%}"
    return f"{found.step_seconds * 1e3:9.1f} ms / {beside / found.step_seconds:.2f}"


def compare(model: str, cluster: str, budget: int) -> None:
    domain = domain_of(model, cluster)
    judge = PlacementJudge(domain, TimelineSimulator())
    named = baselines(domain)
    rows = dict(zip(named, judge.judge(list(named.values())), strict=True))
    rows["search without"] = without_placement(judge)
    bases = [list_schedule(domain), rows["search without"].strategy]
    started = time.monotonic()
    greedy = [place_greedily(judge, base, budget // 2) for base in bases]
    rows["plain proposer"] = min(greedy, key=lambda each: each.rank)
    plain_seconds = time.monotonic() - started
    started = time.monotonic()
    learned = [learned_placement(domain, TimelineSimulator(), base, budget // 2) for base in bases]
    rows["policy"] = min(learned, key=lambda each: each.rank)
    learned_seconds = time.monotonic() - started
    beside = rows["EV-AR"].step_seconds
    print(f"{model} on {cluster}: ms an iteration / times as fast as EV-AR", flush=True)
    for name, found in rows.items():
        print(f"  {name:16} {shown(found, beside)}", flush=True)
    print(
        f"  {budget} evaluations: plain {plain_seconds:.1f} s, policy {learned_seconds:.1f} s; the "
        f"plain one: {describe(rows['plain proposer'].strategy, domain)}",
        flush=True,
    )
    order_matters(judge, rows["plain proposer"])


def order_matters(judge: PlacementJudge, found: JudgedPlacement) -> None:
    """Table 7's form: the found order beside messages as gradients get ready."""
    if found.strategy.schedule.order == "fifo":
        return
    schedule = Schedule("fifo", found.strategy.schedule.slice_bytes)
    fifo = judge.judge([replace(found.strategy, schedule=schedule)])[0]
    gain = fifo.step_seconds / found.step_seconds - 1
    print(
        f"  its order {found.step_seconds * 1e3:.1f} ms, FIFO {fifo.step_seconds * 1e3:.1f} ms: "
        f"{gain:.1%} faster",
        flush=True,
    )


def adapt(models: Sequence[str], cluster: str, budget: int) -> None:
    """Table 6's form."""
    settings = PolicySettings()
    simulator = TimelineSimulator()

    def task_of(model: str) -> PolicyTask:
        domain = domain_of(model, cluster)
        return policy_task(domain, simulator, list_schedule(domain), settings)

    for unseen in models:
        torch.manual_seed(settings.seed)
        alone, fresh = task_of(unseen), PlacementPolicy()
        started = time.monotonic()
        train_policy(fresh, [alone], budget, settings)
        scratch_seconds = time.monotonic() - started
        pretrained = PlacementPolicy()
        others = [task_of(model) for model in models if model != unseen]
        train_policy(pretrained, others, budget * len(others), settings)
        again = task_of(unseen)
        started = time.monotonic()
        train_policy(pretrained, [again], budget, settings)
        tuned_seconds = time.monotonic() - started
        goal = alone.best.step_seconds * WITHIN
        print(
            f"{unseen}: from nothing {reached(alone.curve, goal)} of {budget} evaluations to "
            f"{goal * 1e3:.1f} ms ({scratch_seconds:.0f} s in all), pretrained on the others "
            f"{reached(again.curve, goal)} ({tuned_seconds:.0f} s in all, best "
            f"{again.best.step_seconds * 1e3:.1f} ms)",
            flush=True,
        )


def reached(curve: Sequence[tuple[int, float]], goal: float) -> str:
    return next((str(count) for count, best in curve if best <= goal), "more than all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="heterog-8-gpus")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--budget", type=int, default=400)
    parser.add_argument("--adapt", action="store_true")
    parser.add_argument("--large", action="store_true")
    given = parser.parse_args()
    if given.adapt:
        adapt(given.models, given.cluster, given.budget)
        return
    for model in LARGE if given.large else given.models:
        compare(model, given.cluster, given.budget)


if __name__ == "__main__":
    main()
