"""What an encoder reads of a strategy: sums over messages, at the nodes of the pruned graph.

A node is what one operation uses first (a weight and its bias): its variables are ready and needed
together. Nodes stand in forward order; two are joined where data flows between them past no other
variable (thesis 8.3.1, the pruned graph).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.graph import ModelGraph
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.cost.network import network_of
from autosync.simulator.timeline.timeline_simulator import TimelineTimes
from autosync.simulator.timeline.what_if import FAMILIES

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

MEANS = ("ready", "start", "done")
NODE_COLUMNS = (
    *(f"messages_{family}" for family in FAMILIES),
    *("transfer", "startup", "link", "size"),
    *MEANS,
)
"""Messages by family, the terms of equations 2 and 3, each message shared among its pieces by their
bytes; a node's share of the model; the timeline's times, means over messages and bytes. Seconds are
units of compute."""


@dataclass(frozen=True, slots=True)
class NodeFeatures:
    """values f32[n, N, len(NODE_COLUMNS)]: of n strategies. edges i64[2, E]: of the pruned graph,
    both directions."""

    values: NDArray[np.float32]
    edges: I64


def node_features(
    plans: PlanTable, population: Population, domain: Domain, times: TimelineTimes
) -> NodeFeatures:
    node, edges = pruned_graph(domain.graph)
    n, nodes, buckets = len(plans), int(node.max()) + 1, len(plans.bucket_first) - 1
    compute = max(domain.timing.forward_seconds + domain.timing.backward_seconds, 1e-9)
    costs = network_of(domain.cluster, plans.teams)
    kind, wire = costs.classes_of(plans), plans.wire_bytes.astype(np.float64)
    copies = costs.equation_seconds_per_byte[kind] + costs.copy_seconds_per_byte[kind]
    ready = domain.timing.ready_seconds[np.maximum(plans.ready, 0)] * (plans.ready >= 0)
    seconds: dict[str, F64] = {
        "transfer": copies * wire,
        "startup": costs.message_seconds[kind],
        "link": costs.seconds_per_byte[kind] * wire,
        "ready": ready,
        "start": times.start,
        "done": times.done,
    }
    of_messages = {name: values / compute for name, values in seconds.items()}
    for family, operations in FAMILIES.items():
        of_messages[f"messages_{family}"] = np.isin(plans.operation, operations).astype(np.float64)

    owner = np.zeros(buckets, dtype=np.int64)
    owner[plans.bucket] = np.repeat(np.arange(n), np.diff(plans.first))
    bucket = np.repeat(np.arange(buckets), np.diff(plans.bucket_first))  # of each piece
    row = population.first[owner[bucket]] + plans.piece_row
    place = owner[bucket] * nodes + node[population.variable[row]]
    elements = (plans.piece_stop - plans.piece_start).astype(np.float64)
    share = elements / np.bincount(bucket, weights=elements, minlength=buckets)[bucket]
    messages = np.maximum(np.bincount(plans.bucket, minlength=buckets), 1)
    size = np.bincount(place, weights=elements, minlength=n * nodes)
    columns = {"size": size / max(domain.variables.elements.sum(), 1)}
    for name, values in of_messages.items():
        total = np.bincount(plans.bucket, weights=values, minlength=buckets)
        is_mean = name in MEANS
        weights = elements * (total / messages)[bucket] if is_mean else share * total[bucket]
        sums = np.bincount(place, weights=weights, minlength=n * nodes)
        columns[name] = sums / np.maximum(size, 1.0) if is_mean else sums
    table = np.column_stack([columns[name] for name in NODE_COLUMNS])
    return NodeFeatures(table.reshape(n, nodes, -1).astype(np.float32), edges)


@lru_cache(maxsize=8)
def pruned_graph(graph: ModelGraph) -> tuple[I64, I64]:
    """i64[V], each variable's node; i64[2, E], pairs of nodes that are joined, each once."""
    consumers = graph.consumers()
    first = [uses[0] if uses else len(graph.operations) for uses in consumers]
    node = np.unique(first, return_inverse=True)[1].astype(np.int64)
    sources: list[frozenset[int]] = []
    pairs: set[tuple[int, int]] = set()
    for operation in graph.operations:
        above = frozenset().union(*(sources[i] for i in operation.inputs))
        own = frozenset(int(node[variable]) for variable in operation.variables)
        pairs.update((u, v) for v in own for u in above | own if u != v)
        sources.append(own or above)
    both = sorted(pairs | {(v, u) for u, v in pairs})
    return node, np.array(both, dtype=np.int64).reshape(len(both), 2).T
