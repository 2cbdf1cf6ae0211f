"""A policy trained on many domains, so that it knows what is worth a try on one that it never saw
(HeteroG, sections 4.1.3 and 6.5). Each pass begins anew on every domain: what is learned is to find
good placements soon.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from autosync.cluster import Backend, Cluster, Device, Node
from autosync.domain import Domain, Optimizer
from autosync.extensions.placement.policy_network import PlacementPolicy
from autosync.extensions.placement.policy_training import (
    PolicySettings,
    PolicyTask,
    policy_task,
    train_round,
)
from autosync.graph import ModelGraph
from autosync.models import bundled
from autosync.population import encode
from autosync.profiling import estimate_profile
from autosync.search.designs.list_schedule import list_schedule
from autosync.search.domain_facts import replica_layouts
from autosync.search.space import Space
from autosync.simulator.memory.peak_memory import device_memory_bytes, memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy

GRAPHS = ("densenet121", "dlrm", "gpt2", "gpt2_medium", "lm1b", "vit_large")
"""Bundled ones, none of a family of HeteroG's, which are left to show what is found on graphs that
a policy never saw: VGG, ResNet, Inception, MobileNet, NASNet, the Transformer, BERT and XLNet."""

DEVICES = ("gtx-1080-ti", "m60", "p100", "rtx-2080-ti", "t4", "v100")
GBPS = (4.0, 100.0)
"""Of a NIC: from and to, drawn evenly by their logarithm."""

TIGHT = 1 / 3
"""Of the domains, whose devices have too little memory for plain replicas."""

MISSING = (0.1, 0.6)
"""Of the values, gradients and optimizer state of a replica: that a device of these has no room
for. Activations are as many wherever modules live. All others have half of it to spare."""


def pretrain(
    policy: PlacementPolicy,
    tasks: Sequence[PolicyTask],
    passes: int,
    rounds: int,
    settings: PolicySettings,
) -> Iterator[list[float]]:
    """In place. After each pass of so many rounds on every task: the gain of each.

    The first draws by chance alone. From then on REINFORCE also makes likelier what was best on a
    task in any pass before: with a few rounds a task, rewards alone teach less than they shake.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
    placed = [task for task in tasks if task.groups.count]
    best: list[PolicyTask] = []
    for number in range(passes):
        own = settings if best else replace(settings, chance=1.0)
        begun = [_begun_anew(task, own) for task in placed]
        weight = settings.entropy * (1 - number / passes)
        for _ in range(rounds):
            for index, task in enumerate(begun):
                imitated = best[index].chosen if best else None
                train_round(policy, task, optimizer, generator, settings.samples, weight, imitated)
        yield [gain(task) for task in begun]
        best = [
            new if new.best.rank < old.best.rank else old
            for new, old in zip(begun, best or begun, strict=True)
        ]


def gain(task: PolicyTask) -> float:
    """How many times as fast as the base, whether that fits or not; 0 where nothing fits."""
    return task.base.step_seconds / task.best.step_seconds if task.best.fits else 0.0


def drawn_tasks(
    count: int, settings: PolicySettings, graphs: Sequence[str] = GRAPHS
) -> list[PolicyTask]:
    """Of these graphs in turn, on clusters that are drawn."""
    rng = np.random.default_rng(settings.seed)
    tasks = []
    for number in range(count):
        domain, base = drawn_domain(bundled(graphs[number % len(graphs)]), rng)
        tasks.append(policy_task(domain, TimelineSimulator(), base, settings))
    return tasks


def drawn_domain(graph: ModelGraph, rng: np.random.Generator) -> tuple[Domain, Strategy]:
    """On two kinds of devices behind NICs of two speeds, one to three nodes of each, of one or two
    devices; and a base, with even shares or by speed."""
    nodes: list[Node] = []
    for kind in rng.choice(DEVICES, 2, replace=False).tolist():
        gbps = float(np.exp(rng.uniform(*np.log(GBPS))))
        devices = (Device(kind, int(rng.integers(1, 3))),)
        for _ in range(int(rng.integers(1, 4))):
            nodes.append(Node(f"10.0.0.{len(nodes) + 1}", devices, gbps, 48.0))
    backend: Backend = "gloo" if rng.random() < 0.5 else "nccl"
    cluster = Cluster("drawn", tuple(nodes), backend=backend)
    domain = Domain(graph, cluster, estimate_profile(graph, "v100"), Optimizer("adam", True, 2))
    layouts = replica_layouts(domain, Space(uneven_shares=True))
    base = replace(list_schedule(domain), replicas=layouts[int(rng.integers(len(layouts)))])
    missing = float(rng.uniform(*MISSING)) if rng.random() < TIGHT else -0.5
    return _with_memory(domain, base, missing), base


def _with_memory(domain: Domain, base: Strategy, missing: float) -> Domain:
    """Devices without room for so much of what the base holds of variables on the rank that lacks
    most, each in proportion to its own memory."""
    population = encode([base], domain)
    peaks = memory_of(domain).peak_bytes(compile_plans_fast(population, domain), population)
    held = domain.graph.size_bytes * (2 + domain.optimizer.state_tensors)
    scale = float(((peaks[0] - missing * held) / device_memory_bytes(domain)).max())
    nodes = tuple(
        replace(
            node,
            devices=tuple(
                replace(each, memory_gb=each.memory_bytes * scale / 1e9) for each in node.devices
            ),
        )
        for node in domain.cluster.nodes
    )
    return replace(domain, cluster=replace(domain.cluster, nodes=nodes))


def _begun_anew(task: PolicyTask, settings: PolicySettings) -> PolicyTask:
    follow = (task.actions.follow,) * task.groups.count
    return replace(
        task,
        best=task.base,
        chosen=follow,
        settings=settings,
        changes=settings.changes,
        drawn={follow},
        baseline=None,
        spread=0.0,
        curve=[],
    )
