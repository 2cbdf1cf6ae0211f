"""Operations grouped around the heaviest modules (after HeteroG, section 4.1.1), and what a policy
sees of them.

HeteroG's groups are around operations, since it may place any. Here modules are placed, so groups
are around modules: those that take longest, with the seconds that their gradients hold the wire,
which HeteroG's graph has as operations of their own. A table takes no compute and is the first to
place.

A policy may do with the module of a group what HeteroG does (section 4.1.2): place it on one of M
devices, on a set of devices alike or of a node, or on all ranks, with the replicas' shares or the
other ones, as the base synchronizes it or by a parameter server.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.placement.document import PlacedModule, evenly, in_proportion
from autosync.extensions.placement.module_borders import borders_of
from autosync.extensions.placement.proposals import (
    PlaceableModule,
    device_sets,
    modules_to_place,
    with_placement,
)
from autosync.search.designs.building_blocks import ordered
from autosync.search.designs.wire_estimates import slowest_factor, wire_seconds
from autosync.search.domain_facts import rank_speeds, sent_bytes, server_weights
from autosync.simulator.cost.compute_time import compute_factors
from autosync.strategy import AllReduce, ParameterServer, Strategy, even_replicas, whole

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

NODE_FEATURES = 8
GROUP_FEATURES = 8

LEAST_WEIGHT = 0.002
"""Of the graph's, that a module must have for a group of its own: a lighter one gains nothing that
its deals do not cost."""

ALIKE = 0.9
"""Modules of so much of another's weight are split where it is: layers of one kind stay alike."""


@dataclass(frozen=True, slots=True)
class OperationGroups:
    """Of n operations in G groups, each around a module that may be placed.

    nodes f32[n, NODE_FEATURES]. edges i64[2, E]: both directions, and each operation to itself.
    group i64[n]. modules: the G modules, in the graph's order. features f32[G, GROUP_FEATURES].
    sparse: of each, whether a gradient of it is sparse. blocks: all modules that may be placed,
    outer ones before those inside.
    """

    nodes: F32
    edges: I64
    group: I64
    modules: tuple[str, ...]
    features: F32
    sparse: tuple[bool, ...]
    blocks: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.modules)


def group_operations(domain: Domain, most: int) -> OperationGroups:
    """At most so many groups: around the heaviest modules, each operation outside of them in the
    group that is the fewest hops away. What neither is heavy nor holds what is has no say."""
    placeable = modules_to_place(domain)
    sync_seconds = _sync_seconds(domain)
    weights = {each.name: _weight(domain, each, sync_seconds) for each in placeable}
    heaviest = heaviest_modules(placeable, weights, most)
    edges = _edges(domain)
    held = [borders_of(domain.graph, each.name).variables for each in heaviest]
    variables = domain.graph.variables
    return OperationGroups(
        _node_features(domain, heaviest, sync_seconds),
        edges,
        _nearest([each.operations for each in heaviest], edges, len(domain.graph.operations)),
        tuple(each.name for each in heaviest),
        _group_features(domain, heaviest, held, sync_seconds),
        tuple(any(variables[index].sparse for index in indices) for indices in held),
        tuple(each.name for each in placeable),
    )


def heaviest_modules(
    placeable: Sequence[PlaceableModule], weights: dict[str, float], most: int
) -> list[PlaceableModule]:
    """At most so many of these, none inside another, in the order of their operations.

    The outermost are split into those inside of them, the heaviest first, as long as there is room
    for all their like.
    """
    by_name = {each.name: each for each in placeable}
    inside: dict[str, list[str]] = {name: [] for name in ("", *by_name)}
    for name in by_name:
        inside[_enclosing(name, by_name)].append(name)
    least = LEAST_WEIGHT * sum(weights[name] for name in inside[""])

    def heavy(names: Sequence[str]) -> list[str]:
        return [name for name in names if weights[name] >= least]

    chosen, unsplit = heavy(inside[""]), set[str]()
    while parts := [name for name in chosen if heavy(inside[name]) and name not in unsplit]:
        limit = ALIKE * max(weights[name] for name in parts)
        alike = {name for name in parts if weights[name] >= limit}
        made = [name for name in chosen if name not in alike]
        made += heavy([part for name in chosen if name in alike for part in inside[name]])
        if len(made) > most:
            unsplit |= alike
        else:
            chosen = made
    kept = sorted(chosen, key=lambda name: -weights[name])[:most]
    return sorted((by_name[name] for name in kept), key=lambda each: each.operations[0])


def _enclosing(name: str, known: dict[str, PlaceableModule]) -> str:
    """The innermost of the known modules around it; empty where there is none."""
    outer = name.rpartition(".")[0]
    while outer and outer not in known:
        outer = outer.rpartition(".")[0]
    return outer


def _sync_seconds(domain: Domain) -> F64:
    """`(variables,)`: that a ring all-reduce of each holds the wire, without startups."""
    sizes = sent_bytes(domain)
    ring = AllReduce(0)
    startup = wire_seconds(domain, ring, np.zeros(1))
    seconds: F64 = wire_seconds(domain, ring, sizes) - startup
    return seconds


def _weight(domain: Domain, module: PlaceableModule, sync_seconds: F64) -> float:
    held = list(borders_of(domain.graph, module.name).variables)
    return module.seconds * slowest_factor(domain) + float(sync_seconds[held].sum())


def _edges(domain: Domain) -> I64:
    pairs = [(s, i) for i, each in enumerate(domain.graph.operations) for s in each.inputs]
    both = [*pairs, *((b, a) for a, b in pairs)]
    both += [(index, index) for index in range(len(domain.graph.operations))]
    return np.array(sorted(set(both)), dtype=np.int64).T


def _nearest(inside: Sequence[Sequence[int]], edges: I64, count: int) -> I64:
    """Of each operation, which of the groups around these operations is nearest; what no path
    leads to goes with the one before it in the graph."""
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for first, second in edges.T.tolist():
        neighbours[first].append(second)
    found = np.full(count, -1, dtype=np.int64)
    for number, operations in enumerate(inside):
        found[list(operations)] = number
    waiting = deque(np.flatnonzero(found >= 0).tolist())
    while waiting:
        operation = waiting.popleft()
        for other in neighbours[operation]:
            if found[other] < 0:
                found[other] = found[operation]
                waiting.append(other)
    for operation in np.flatnonzero(found < 0).tolist():
        found[operation] = found[operation - 1] if operation else 0
    return found


def _node_features(domain: Domain, heaviest: Sequence[PlaceableModule], sync_seconds: F64) -> F32:
    """Seconds are thousandths of those that the slowest replica computes."""
    graph, profile = domain.graph, domain.profile
    features = np.zeros((len(graph.operations), NODE_FEATURES), dtype=np.float32)
    whole = _compute_seconds(domain)
    per_byte = _seconds_per_byte(domain)
    factor = slowest_factor(domain)
    features[:, 0] = _logarithm(np.array(profile.forward_seconds) * factor / whole)
    features[:, 1] = _logarithm(np.array(profile.backward_seconds) * factor / whole)
    dealt = np.array([operation.output_bytes for operation in graph.operations]) * per_byte
    features[:, 2] = _logarithm(dealt / whole)
    for index, operation in enumerate(graph.operations):
        held = list(operation.variables)
        features[index, 3] = _logarithm(sync_seconds[held].sum() / whole)
        features[index, 4] = operation.has_batch_dimension
        features[index, 5] = any(graph.variables[i].sparse for i in held)
        features[index, 6] = sum(graph.variables[i].size_bytes for i in held) / graph.size_bytes
    for each in heaviest:
        features[list(each.operations), 7] = 1.0
    return features


def _group_features(
    domain: Domain,
    heaviest: Sequence[PlaceableModule],
    held: Sequence[Sequence[int]],
    sync_seconds: F64,
) -> F32:
    """Of the seconds that the slowest replica computes: the module's, those of its gradients on the
    wire, and those of its samples; its bytes over the model's. Each as it is and as a logarithm."""
    whole, per_byte = _compute_seconds(domain), _seconds_per_byte(domain)
    shares = np.array(
        [
            (
                each.seconds * slowest_factor(domain) / whole,
                sync_seconds[list(own)].sum() / whole,
                each.dealt_bytes * per_byte / whole,
                each.variable_bytes / domain.graph.size_bytes,
            )
            for each, own in zip(heaviest, held, strict=True)
        ]
    ).reshape(-1, GROUP_FEATURES // 2)
    return np.hstack((np.minimum(shares, 4.0), _logarithm(shares))).astype(np.float32)


def _logarithm(shares: F64) -> F64:
    """From 0 for nothing to about 1 for the whole."""
    found: F64 = np.log1p(1e3 * shares) / 7
    return found


def _compute_seconds(domain: Domain) -> float:
    return max(domain.profile.compute_seconds * slowest_factor(domain), 1e-12)


def _seconds_per_byte(domain: Domain) -> float:
    """That a ring all-reduce takes."""
    size_bytes = np.array([0.0, 1e9])
    none, whole = wire_seconds(domain, AllReduce(0), size_bytes).tolist()
    return float(whole - none) / 1e9


FOLLOW, SERVER, OTHER_SHARES, OTHER_SHARES_SERVER = 0, 1, 2, 3
"""Behind the sets of devices: with the replicas, by server, dealt evenly where the replicas' shares
are by speed (by speed where they are even), and that by server. HeteroG's EV-AR, EV-PS, CP-AR and
CP-PS, told from the base."""

SCHEMES = 4
PLACE_FEATURES = 6


@dataclass(frozen=True, slots=True)
class PlacementActions:
    """sets: of ranks, S of them. allowed bool[G, S + SCHEMES]. features f32[S, PLACE_FEATURES]: of
    the sets."""

    sets: tuple[tuple[int, ...], ...]
    allowed: NDArray[np.bool_]
    features: NDArray[np.float32]

    @property
    def follow(self) -> int:
        """The action that leaves a group as the base has it."""
        return len(self.sets) + FOLLOW


def placement_actions(
    domain: Domain,
    base: Strategy,
    groups: OperationGroups,
    uneven_shares: bool = True,
    servers: bool = True,
) -> PlacementActions:
    """Servers update parts of variables, which takes an elementwise optimizer; other shares take
    two speeds; modules with sparse gradients live on one rank or on all. uneven_shares: samples may
    be dealt by speed. servers: may hold variables."""
    sets = tuple(device_sets(domain))
    allowed = np.ones((groups.count, len(sets) + SCHEMES), dtype=np.bool_)
    several = np.flatnonzero([len(ranks) > 1 for ranks in sets])
    allowed[np.ix_(np.flatnonzero(groups.sparse), several)] = False
    speeds = rank_speeds(domain)
    schemes = allowed[:, len(sets) :]
    schemes[:, [SERVER, OTHER_SHARES_SERVER]] &= servers and domain.optimizer.elementwise
    other = max(speeds) > min(speeds) and (uneven_shares or not _are_even(base, domain))
    schemes[:, [OTHER_SHARES, OTHER_SHARES_SERVER]] &= other
    return PlacementActions(sets, allowed, _place_features(domain, base, sets))


def strategy_of_actions(
    domain: Domain,
    base: Strategy,
    groups: OperationGroups,
    sets: Sequence[tuple[int, ...]],
    actions: Sequence[int],
) -> Strategy:
    """actions: of each group. base: whose replicas, messages and order all else keeps.

    Modules with one place make up the largest block whose groups all have it, so that samples are
    dealt at its borders only.
    """
    place_of: dict[str, PlacedModule | None] = {}
    owned: list[str] = []
    for module, action in zip(groups.modules, actions, strict=True):
        scheme = action - len(sets)
        if scheme < 0:
            place_of[module] = evenly(module, sets[action])
            continue
        is_dealt = scheme in (OTHER_SHARES, OTHER_SHARES_SERVER)
        place_of[module] = _with_other_shares(domain, base, module) if is_dealt else None
        if scheme in (SERVER, OTHER_SHARES_SERVER):
            owned.append(module)
    made = _with_servers(base, domain, owned)
    return with_placement(made, domain, _in_blocks(place_of, groups.blocks))


def _are_even(base: Strategy, domain: Domain) -> bool:
    return base.replicas == even_replicas(domain.world_size)


def _with_other_shares(domain: Domain, base: Strategy, module: str) -> PlacedModule:
    ranks = range(domain.world_size)
    if _are_even(base, domain):
        return in_proportion(module, ranks, rank_speeds(domain))
    return evenly(module, ranks)


def _place_features(
    domain: Domain, base: Strategy, sets: Sequence[tuple[int, ...]]
) -> NDArray[np.float32]:
    """Of each set: how many times as long as the slowest replica its ranks compute; their bandwidth
    over the mean; their memory over the model's bytes; their share of all ranks; whether they have
    nothing to synchronize; whether they are of one node."""
    cluster, world = domain.cluster, domain.world_size
    slowest = float(compute_factors(domain, base.replicas).max())
    devices = cluster.device_of_rank()
    factors = np.array([domain.profile.factor_on(device) for device in devices])
    weights = server_weights(domain) * world
    memory = np.array([device.memory_bytes for device in devices]) / domain.graph.size_bytes
    node = cluster.node_of_server()
    found = [
        (
            np.log(factors[list(ranks)].max() * world / len(ranks) / slowest),
            np.log(weights[list(ranks)].mean()),
            np.log1p(memory[list(ranks)].min()) / 4,
            len(ranks) / world,
            len(ranks) == 1,
            len(set(node[list(ranks)].tolist())) == 1,
        )
        for ranks in sets
    ]
    return np.array(found, dtype=np.float32)


def _in_blocks(
    place_of: dict[str, PlacedModule | None], blocks: Sequence[str]
) -> tuple[PlacedModule, ...]:
    """blocks: outer ones before those inside. One that holds a single group's module is not taken
    in its stead: what else is in it has no say."""
    found: list[PlacedModule] = []
    for block in blocks:
        if any(placed.holds(block) for placed in found):
            continue
        inside = [each for name, each in place_of.items() if name.startswith(f"{block}.")]
        if block in place_of:
            inside = [place_of[block]]
        elif len(inside) < 2:
            continue
        first = inside[0]
        if first is not None and all(
            each is not None and (each.ranks, each.shares) == (first.ranks, first.shares)
            for each in inside
        ):
            found.append(replace(first, module=block))
    return tuple(found)


def _with_servers(strategy: Strategy, domain: Domain, modules: Sequence[str]) -> Strategy:
    """Variables of these modules whole at servers, each at the one that is then least busy for its
    bandwidth; those of a module and a server in one message."""
    if not modules:
        return strategy
    weights, load = server_weights(domain), np.zeros(domain.world_size)
    above = 1 + max(shard.group for choice in strategy.choices for shard in choice.shards)
    groups: dict[tuple[str, int, bool, str], int] = {}
    places = iter(strategy.schedule.positions or (0,) * strategy.shards)
    choices, keys = [], []
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        own = [float(next(places)) for _ in choice.shards]
        module = next((name for name in modules if variable.name.startswith(f"{name}.")), None)
        if module is None:
            choices.append(choice)
            keys.append(own)
            continue
        server = int(np.argmin((load + variable.size_bytes) / weights))
        load[server] += variable.size_bytes
        alike = (module, server, variable.sparse, variable.dtype)
        shard = ParameterServer(server, groups.setdefault(alike, above + len(groups)))
        choices.append(replace(choice, partition=whole(variable.shape), shards=(shard,)))
        keys.append([min(own)])
    made = replace(strategy, choices=tuple(choices))
    return ordered(made, keys) if strategy.schedule.order == "explicit" else made
