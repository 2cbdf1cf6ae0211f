"""The pruned graph: variables, joined where data flows between them past no other variable."""

import numpy as np
from numpy.typing import NDArray

from autosync.graph import ModelGraph
from simulator.learned.portions import Portions

I64 = NDArray[np.int64]


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


def portion_edges(portions: Portions, edges: I64, variables: int) -> I64:
    """A `(2, E)` array over the portions of all strategies: every portion of a variable with every
    portion of its neighbours, and with the other portions of its own variable."""
    n = len(portions.first) - 1
    strategy = np.repeat(np.arange(n), np.diff(portions.first))
    counts = np.bincount(strategy * variables + portions.variable, minlength=n * variables)
    starts = np.concatenate(([0], np.cumsum(counts)))[:-1]
    own = np.tile(np.arange(variables), (2, 1))
    pairs = np.concatenate([edges, own], axis=1)
    cells = (np.arange(n)[:, None] * variables)[:, :, None] + pairs.T.reshape(1, -1, 2)
    source, target = cells.reshape(-1, 2).T
    sizes = counts[source] * counts[target]
    cell = np.repeat(np.arange(len(sizes)), sizes)
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    i = starts[source][cell] + within // counts[target][cell]
    j = starts[target][cell] + within % counts[target][cell]
    distinct = i != j
    return np.stack([i[distinct], j[distinct]])
