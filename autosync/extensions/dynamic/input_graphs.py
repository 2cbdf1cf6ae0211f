"""Input graphs: what the structure of a sample is, apart from what is computed on it; and which of
their vertices are evaluated together (Cavs' batching policy: thesis, algorithm 6)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.errors import InvalidInput

I64 = NDArray[np.int64]

ROOT = -1
"""Stands for the parent of a vertex that has none."""


@dataclass(frozen=True)
class FrontierSchedule:
    """N vertices in the order of evaluation, in T tasks. A vertex's place in it is its row.

    order i64[N]: the vertex of each row. row i64[N]: the row of each vertex.
    bounds i64[T + 1]: task t evaluates rows `bounds[t]:bounds[t + 1]`. The vertices of the first
        task have no children, all others have one at least.
    edge_bounds i64[T + 1]: its edges in what follows. edge_child i64[E]: the child's row;
    edge_parent i64[E]: the parent's row, ascending; edge_place i64[E]: which child of it, from 0.
    """

    order: I64
    row: I64
    bounds: I64
    edge_bounds: I64
    edge_child: I64
    edge_parent: I64
    edge_place: I64

    def tasks(self) -> Iterator[tuple[int, int, int]]:
        """Number, first row and end of each task."""
        for task, start in enumerate(self.bounds[:-1]):
            yield task, int(start), int(self.bounds[task + 1])

    def children_at(self, place: int) -> I64:
        """i64[N]: of each row's vertex the row of its child number `place`, N where it has none."""
        rows = np.full(len(self.order), len(self.order), dtype=np.int64)
        here = self.edge_place == place
        rows[self.edge_parent[here]] = self.edge_child[here]
        return rows


@dataclass(frozen=True)
class InputGraphs:
    """The input graphs of a batch, N vertices and E edges in all (Cavs, thesis section 6.4).

    first_child i64[N + 1], child i64[E]: the children of vertex v are
        `child[first_child[v]:first_child[v + 1]]`, in the order in which `gather` counts them.
    graph i64[N]: the sample that a vertex belongs to, ascending.

    Made by `chains`, `trees`, `graphs_of_children` and `join_graphs`; the vertices of a sample
    follow those of the sample before.

    Raises:
        InvalidInput: an edge leads nowhere or to another sample; the lengths do not fit.
    """

    first_child: I64
    child: I64
    graph: I64

    def __post_init__(self) -> None:
        vertices, edges = len(self.graph), len(self.child)
        counts = np.diff(self.first_child)
        if vertices == 0:
            raise _refused("vertices", 0, "hold no vertex")
        if len(counts) != vertices or (counts < 0).any() or self.first_child[0] != 0:
            raise _refused("first_child", len(self.first_child), "do not count up the children")
        if self.first_child[-1] != edges:
            raise _refused("child", edges, f"have {self.first_child[-1]} children by first_child")
        if self.graph[0] < 0 or (np.diff(self.graph) < 0).any():
            raise _refused("graph", int(self.graph[0]), "are not in the order of their samples")
        if edges and not (self.child.min() >= 0 and self.child.max() < vertices):
            wrong = int(self.child.min()) if self.child.min() < 0 else int(self.child.max())
            raise _refused("child", wrong, f"have {vertices} vertices, and an edge to another")
        between = self.graph[self.child] != self.graph[np.repeat(np.arange(vertices), counts)]
        if between.any():
            wrong = int(self.child[between][0])
            raise _refused("child", wrong, "have an edge from one sample to another")

    @property
    def vertices(self) -> int:
        return len(self.graph)

    @cached_property
    def samples(self) -> int:
        return int(self.graph[-1]) + 1

    @cached_property
    def most_children(self) -> int:
        """Of any vertex."""
        return int(np.diff(self.first_child).max())

    @cached_property
    def roots(self) -> I64:
        """The vertices that are nobody's child, ascending: of a tree its root, of a chain its
        last vertex."""
        has_parent = np.zeros(self.vertices, dtype=np.bool_)
        has_parent[self.child] = True
        return np.flatnonzero(~has_parent)

    @cached_property
    def schedule(self) -> FrontierSchedule:
        """Raises InvalidInput where edges form a cycle."""
        return schedule_frontiers(self.first_child, self.child)


def chains(lengths: Sequence[int]) -> InputGraphs:
    """Sequences: vertex t of a sample has vertex t - 1 as its only child."""
    counts = np.asarray(lengths, dtype=np.int64)
    if counts.ndim != 1 or len(counts) == 0 or (counts < 1).any():
        raise InvalidInput(
            f"the lengths of sequences are positive, got {list(lengths)[:8]}.",
            thing="lengths",
            value=list(lengths)[:8],
            remedy="Leave empty sequences out.",
        )
    return trees([[*range(1, count), ROOT] for count in counts.tolist()])


def trees(parents: Sequence[Sequence[int]]) -> InputGraphs:
    """One tree a sample, given by the parent of each vertex, `ROOT` (-1) of a root. Children come
    in the order of their numbers."""
    return join_graphs([_tree(np.asarray(one, dtype=np.int64)) for one in parents])


def _tree(parents: I64) -> InputGraphs:
    vertices = len(parents)
    if vertices and not (parents.min() >= ROOT and parents.max() < vertices):
        raise _refused("parents", parents.tolist()[:8], f"have {vertices} vertices, and a parent")
    children = np.flatnonzero(parents != ROOT)
    counts = np.bincount(parents[children], minlength=vertices)
    return _sample(counts, children[np.argsort(parents[children], kind="stable")])


def graphs_of_children(children: Sequence[Sequence[Sequence[int]]]) -> InputGraphs:
    """One graph a sample, given by the children of each vertex, numbered within the sample. A
    vertex may be the child of several."""
    return join_graphs(
        [
            _sample([len(of_vertex) for of_vertex in one], [v for each in one for v in each])
            for one in children
        ]
    )


def _sample(counts: Any, child: Any) -> InputGraphs:
    """counts: of each vertex's children, whose numbers are `child`."""
    ends = np.cumsum(np.asarray(counts, dtype=np.int64))
    return InputGraphs(
        first_child=np.concatenate((np.zeros(1, dtype=np.int64), ends)),
        child=np.asarray(child, dtype=np.int64),
        graph=np.zeros(len(ends), dtype=np.int64),
    )


def join_graphs(graphs: Sequence[InputGraphs]) -> InputGraphs:
    """The samples of all of them, one after another: what a batch is collated with."""
    if not graphs:
        raise _refused("graphs", 0, "hold no sample")
    vertices = np.cumsum([0] + [one.vertices for one in graphs])
    edges = np.cumsum([0] + [len(one.child) for one in graphs])
    samples = np.cumsum([0] + [one.samples for one in graphs])
    ends = [one.first_child[1:] + edge for one, edge in zip(graphs, edges, strict=False)]
    return InputGraphs(
        first_child=np.concatenate([np.zeros(1, dtype=np.int64), *ends]),
        child=np.concatenate([g.child + n for g, n in zip(graphs, vertices, strict=False)]),
        graph=np.concatenate([g.graph + n for g, n in zip(graphs, samples, strict=False)]),
    )


def schedule_frontiers(first_child: I64, child: I64) -> FrontierSchedule:
    """Each task evaluates all vertices whose children have been evaluated: a breadth-first search
    over the graphs of the whole batch, from the vertices without children.

    Raises:
        InvalidInput: some vertices wait for each other.
    """
    vertices = len(first_child) - 1
    frontiers = list(_frontiers(first_child, child))
    order = np.concatenate(frontiers) if frontiers else np.zeros(0, dtype=np.int64)
    if len(order) < vertices:
        stuck = np.setdiff1d(np.arange(vertices), order)
        raise InvalidInput(
            f"input graphs have a cycle: vertex {stuck[0]} waits for itself.",
            thing="child",
            value=int(stuck[0]),
            remedy="Edges lead from children to parents, without a way back.",
        )
    row = np.empty(vertices, dtype=np.int64)
    row[order] = np.arange(vertices)
    bounds = np.cumsum([0] + [len(frontier) for frontier in frontiers])
    counts = np.diff(first_child)[order]
    edges, place = _ranges(first_child[order], counts)
    edge_ends = np.concatenate(([0], np.cumsum(counts)))
    return FrontierSchedule(
        order=order,
        row=row,
        bounds=bounds,
        edge_bounds=edge_ends[bounds],
        edge_child=row[child[edges]],
        edge_parent=np.repeat(np.arange(vertices), counts),
        edge_place=place,
    )


def _frontiers(first_child: I64, child: I64) -> Iterator[I64]:
    waiting_for = np.diff(first_child)
    vertices = len(waiting_for)
    by_child = np.argsort(child, kind="stable")
    parent = np.repeat(np.arange(vertices), waiting_for)[by_child]
    parents = np.bincount(child, minlength=vertices)
    first_parent = np.cumsum(parents) - parents
    frontier = np.flatnonzero(waiting_for == 0)
    while len(frontier):
        yield frontier
        edges, _ = _ranges(first_parent[frontier], parents[frontier])
        reached, times = np.unique(parent[edges], return_counts=True)
        waiting_for[reached] -= times
        frontier = reached[waiting_for[reached] == 0]


def _ranges(first: I64, counts: I64) -> tuple[I64, I64]:
    """`first[i], first[i] + 1, ...`, `counts[i]` of each in a row; and the same from 0."""
    begun = np.cumsum(counts) - counts
    place = np.arange(int(counts.sum())) - np.repeat(begun, counts)
    return np.repeat(first, counts) + place, place


def _refused(field: str, value: object, why: str) -> InvalidInput:
    return InvalidInput(
        f"input graphs {why}: {field} is {value}.",
        thing=field,
        value=value,
        remedy="Make them with chains, trees, graphs_of_children or join_graphs.",
    )
