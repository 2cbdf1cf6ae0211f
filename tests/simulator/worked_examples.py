"""Small strategies and clusters whose times can be worked out by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Backend, Cluster, Device, MessageCost, MessageKind, Node
from autosync.domain import Domain
from autosync.graph import Variable
from autosync.population import encode
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import (
    Algorithm,
    AllGather,
    AllReduce,
    Factors,
    ParameterServer,
    Partition,
    ReduceScatter,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    split,
    whole,
)

KINDS: tuple[MessageKind, ...] = tuple(k for k in get_args(MessageKind) if k != "engine")


def cluster_of(
    nodes: int = 4,
    ranks_per_node: int = 1,
    gbps: float | tuple[float, ...] = 0.8,
    intra_gbps: float = 80.0,
    startup: float = 0.0,
    per_worker: float = 0.0,
    slowdowns: tuple[float, ...] = (),
    backend: Backend = "gloo",
    servers: int = 0,
) -> Cluster:
    """Stated costs, so that nothing is added, and compute that messages do not slow; `servers`
    dedicated hosts at the end."""
    rates = gbps if isinstance(gbps, tuple) else (gbps,) * nodes
    slow = slowdowns or (1.0,) * nodes
    hosts = [
        Node(f"10.0.0.{i}", (Device("cpu", ranks_per_node, slowdown=slow[i]),), rate, intra_gbps)
        for i, rate in enumerate(rates)
    ]
    hosts += [Node(f"10.0.1.{i}", (), rates[0], server_only=True) for i in range(servers)]
    costs = tuple(MessageCost(kind, startup, per_worker) for kind in KINDS)
    return Cluster("by hand", tuple(hosts), backend, costs=costs, overlap_slowdown=0.0)


def on_devices(domain: Domain, *devices: Device) -> Domain:
    """The domain on nodes that have these devices each."""
    nodes = tuple(replace(node, devices=devices) for node in domain.cluster.nodes)
    return replace(domain, cluster=replace(domain.cluster, nodes=nodes))


def strategy_of(
    domain: Domain,
    choose: Callable[[int], Synchronizer],
    schedule: Schedule | None = None,
    parts: int = 1,
) -> Strategy:
    """`choose(variable)` for every shard of it; `parts` shards along axis 0."""
    choices = []
    for index, variable in enumerate(domain.graph.variables):
        cut: Partition = split(variable.shape, 0, parts) if parts > 1 else whole(variable.shape)
        shards = tuple(choose(index) for _ in cut.lengths)
        choices.append(VariableChoice(variable.name, cut, shards))
    return Strategy(tuple(choices), even_replicas(domain.world_size), schedule or Schedule())


def period(domain: Domain, *strategies: Strategy) -> NDArray[np.float64]:
    """Seconds an iteration of each, by the timeline."""
    return TimelineSimulator().predict(domain, encode(list(strategies), domain))


def random_strategy(domain: Domain, rng: np.random.Generator) -> Strategy:
    """Any mixture of everything exact: methods, owners, groups, cuts, orders, slices."""
    groups: dict[object, int] = {}
    choices = []
    for variable in domain.graph.variables:
        parts = int(rng.integers(1, min(4, variable.shape[0]) + 1))
        cut = split(variable.shape, 0, parts) if parts > 1 else whole(variable.shape)
        shards = tuple(_random_shard(domain, variable, parts, groups, rng) for _ in cut.lengths)
        choices.append(VariableChoice(variable.name, cut, shards))
    schedule = Schedule(
        order=("fifo", "priority")[rng.integers(2)],
        slice_bytes=int(rng.choice([0, 2048, 8192])),
        overlap_forward=bool(rng.integers(2)),
    )
    return Strategy(tuple(choices), even_replicas(domain.world_size), schedule)


def _random_shard(
    domain: Domain,
    variable: Variable,
    parts: int,
    groups: dict[object, int],
    rng: np.random.Generator,
) -> Synchronizer:
    def number(*kind: object) -> int:
        return groups.setdefault(kind, len(groups))

    bucket, flag = int(rng.integers(3)), bool(rng.integers(2))
    if variable.sparse:
        server = int(rng.integers(domain.cluster.servers))
        if flag:
            return AllGather(number("all-gather"))
        return ParameterServer(server, number("sparse server", variable.name, server))
    match rng.integers(4):
        case 0:
            server = int(rng.integers(domain.cluster.servers))
            return ParameterServer(server, number("server", server, flag), flag)
        case 1:
            algorithm: Algorithm = ("ring", "tree", "hierarchical")[int(rng.integers(3))]
            return AllReduce(number("all-reduce", algorithm, bucket), algorithm)
        case 2 if variable.factor_rows and parts == 1:
            return Factors(number("factors", variable.name))
        case _:
            return ReduceScatter(number("halves", flag, bucket), flag)
