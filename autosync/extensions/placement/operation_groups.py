"""Operations grouped around the heaviest modules (after HeteroG, section 4.1.1), and what a policy
sees of them.

HeteroG's groups are around operations, since it may place any. Here modules are placed, so groups
are around modules: those that take longest, with the seconds that their gradients hold the wire,
which HeteroG's graph has as operations of their own. A table takes no compute and is the first to
place.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.placement.placeable_modules import PlaceableModule, modules_to_place
from autosync.search.designs.wire_estimates import slowest_factor, wire_seconds
from autosync.search.domain_facts import sent_bytes
from autosync.strategy import AllReduce

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
    held = [domain.borders.of(each.name).variables for each in heaviest]
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
    held = list(domain.borders.of(module.name).variables)
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
