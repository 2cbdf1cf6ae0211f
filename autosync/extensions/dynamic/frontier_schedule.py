"""Which vertices are evaluated together: Cavs' batching policy (thesis, algorithm 6)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.errors import InvalidInput

I64 = NDArray[np.int64]


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
