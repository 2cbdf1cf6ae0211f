"""Operations grouped around the heaviest ones (HeteroG, section 4.1.1), and what a policy sees of
them."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.search.domain_facts import rank_speeds, server_weights
from autosync.search.placement.placeable_modules import PlaceableModule, modules_to_place

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

NODE_FEATURES = 8
RANK_FEATURES = 4


@dataclass(frozen=True, slots=True)
class OperationGroups:
    """Of n operations in G groups on `world` ranks.

    nodes f32[n, NODE_FEATURES]. edges i64[2, E]: both directions, and each operation to itself.
    group i64[n]. modules: the placeable leaves of each group, in the graph's order. seconds
    f64[G]: compute of each. ranks f32[world, RANK_FEATURES].
    """

    nodes: F32
    edges: I64
    group: I64
    modules: tuple[tuple[str, ...], ...]
    seconds: NDArray[np.float64]
    ranks: F32

    @property
    def count(self) -> int:
        return len(self.modules)


def group_operations(domain: Domain, most: int) -> OperationGroups:
    """At most so many groups: around the operations that take longest, each of the others in the
    group of the one with the fewest hops between."""
    profile = domain.profile
    seconds = np.add(profile.forward_seconds, profile.backward_seconds)
    heaviest = np.sort(np.argsort(-seconds, kind="stable")[:most])
    edges = _edges(domain)
    group = _nearest(heaviest, edges, len(seconds))
    leaves = [each for each in modules_to_place(domain) if each.is_leaf]
    modules: list[list[str]] = [[] for _ in heaviest]
    for leaf in leaves:
        longest = max(leaf.operations, key=lambda index: seconds[index])
        modules[int(group[longest])].append(leaf.name)
    return OperationGroups(
        _node_features(domain, leaves),
        edges,
        group,
        tuple(map(tuple, modules)),
        np.bincount(group, seconds, len(heaviest)).astype(np.float64),
        _rank_features(domain),
    )


def _edges(domain: Domain) -> I64:
    pairs = [(s, i) for i, each in enumerate(domain.graph.operations) for s in each.inputs]
    both = [*pairs, *((b, a) for a, b in pairs)]
    both += [(index, index) for index in range(len(domain.graph.operations))]
    return np.array(sorted(set(both)), dtype=np.int64).T


def _nearest(heaviest: I64, edges: I64, count: int) -> I64:
    """Of each operation, the place in `heaviest` of the nearest; what no path leads to goes with
    the one before it in the graph."""
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for first, second in edges.T.tolist():
        neighbours[first].append(second)
    found = np.full(count, -1, dtype=np.int64)
    found[heaviest] = np.arange(len(heaviest))
    waiting = deque(heaviest.tolist())
    while waiting:
        operation = waiting.popleft()
        for other in neighbours[operation]:
            if found[other] < 0:
                found[other] = found[operation]
                waiting.append(other)
    for operation in np.flatnonzero(found < 0).tolist():
        found[operation] = found[operation - 1] if operation else 0
    return found


def _node_features(domain: Domain, leaves: list[PlaceableModule]) -> F32:
    graph, profile = domain.graph, domain.profile
    features = np.zeros((len(graph.operations), NODE_FEATURES), dtype=np.float32)
    whole = max(profile.compute_seconds, 1e-12)
    features[:, 0] = np.log1p(np.multiply(profile.forward_seconds, 1e3 / whole))
    features[:, 1] = np.log1p(np.multiply(profile.backward_seconds, 1e3 / whole))
    for index, operation in enumerate(graph.operations):
        sizes = sum(graph.variables[i].size_bytes for i in operation.variables)
        features[index, 2] = np.log1p(operation.output_bytes) / 20
        features[index, 3] = np.log1p(sizes) / 20
        features[index, 4] = operation.has_batch_dimension
        features[index, 5] = any(graph.variables[i].sparse for i in operation.variables)
        features[index, 6] = sizes / graph.size_bytes
    for leaf in leaves:
        features[list(leaf.operations), 7] = 1.0
    return features


def _rank_features(domain: Domain) -> F32:
    """Of each rank, relative to the mean: speed, bandwidth; memory over the model's bytes; ranks of
    its node over all."""
    speeds = np.array(rank_speeds(domain))
    weights = server_weights(domain) * domain.world_size
    node = domain.cluster.node_of_server()[: domain.world_size]
    devices = domain.cluster.device_of_rank()
    memory = np.array([device.memory_bytes for device in devices]) / domain.graph.size_bytes
    together = np.bincount(node)[node] / domain.world_size
    features = (np.log(speeds / speeds.mean()), np.log(weights), np.log1p(memory) / 4, together)
    return np.stack(features, axis=1).astype(np.float32)
