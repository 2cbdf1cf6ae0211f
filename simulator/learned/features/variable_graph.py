"""The pruned graph: variables, joined where data flows between them past no other variable."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosync.graph import ModelGraph

I64 = NDArray[np.int64]


class PrunedGraph(NamedTuple):
    """place, node i64[V]: of each variable in forward order and in the pruned graph (as
    `forward_places` and `operation_nodes` say). edges i64[2, E]: `node_edges`."""

    place: I64
    node: I64
    edges: I64


@lru_cache(maxsize=8)
def pruned_graph(graph: ModelGraph) -> PrunedGraph:
    """What the networks read of a graph, the same for every strategy."""
    return PrunedGraph(forward_places(graph), operation_nodes(graph), node_edges(graph))


def variable_edges(graph: ModelGraph) -> I64:
    """A `(2, E)` array of ordered pairs, both directions, each once (thesis 8.3.1, G^p).

    Variables of one operation are joined; so are those of two operations when the output of one
    reaches the other through operations without variables.
    """
    sources: list[frozenset[int]] = []
    pairs: set[tuple[int, int]] = set()
    for operation in graph.operations:
        above = frozenset().union(*(sources[i] for i in operation.inputs))
        own = operation.variables
        pairs.update((u, v) for v in own for u in (*above, *own) if u != v)
        sources.append(frozenset(own) or above)
    both = sorted(pairs | {(v, u) for u, v in pairs})
    return np.array(both, dtype=np.int64).reshape(len(both), 2).T


def forward_places(graph: ModelGraph) -> I64:
    """i64[V]: each variable's place in the order of first use in the forward pass."""
    first = [uses[0] if uses else len(graph.operations) for uses in graph.consumers()]
    places = np.empty(len(first), dtype=np.int64)
    places[np.argsort(first, kind="stable")] = np.arange(len(first))
    return places


def operation_nodes(graph: ModelGraph) -> I64:
    """i64[V]: each variable's node in the pruned graph, in forward order. Variables first used by
    one operation (a weight and its bias) are one node: they are ready and needed together."""
    consumers = graph.consumers()
    first = [uses[0] if uses else len(graph.operations) for uses in consumers]
    return np.unique(first, return_inverse=True)[1].astype(np.int64)


def node_edges(graph: ModelGraph) -> I64:
    """A `(2, E)` array of ordered pairs of nodes that `variable_edges` join, each once."""
    pairs = operation_nodes(graph)[variable_edges(graph)]
    return np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)
