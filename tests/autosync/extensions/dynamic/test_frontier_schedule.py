"""Frontiers are as Cavs' algorithm 6 says: all vertices whose children have been evaluated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import InvalidInput
from autosync.extensions.dynamic.input_graphs import InputGraphs, chains, graphs_of_children
from tests.autosync.extensions.dynamic.drawn_graphs import random_acyclic


def task_of_vertices(graphs: InputGraphs) -> list[int]:
    schedule = graphs.schedule
    tasks = np.repeat(np.arange(len(schedule.bounds) - 1), np.diff(schedule.bounds))
    return [int(task) for task in tasks[schedule.row]]


def children_of(graphs: InputGraphs, vertex: int) -> list[int]:
    first = graphs.first_child
    return [int(child) for child in graphs.child[first[vertex] : first[vertex + 1]]]


@given(seed=st.integers(0, 2**32 - 1), samples=st.integers(1, 6), size=st.integers(1, 20))
def test_a_vertex_is_evaluated_right_after_the_last_of_its_children(
    seed: int, samples: int, size: int
) -> None:
    graphs = random_acyclic(np.random.default_rng(seed), samples, size)
    task = task_of_vertices(graphs)
    for vertex in range(graphs.vertices):
        children = children_of(graphs, vertex)
        assert task[vertex] == max((task[child] + 1 for child in children), default=0)


@given(seed=st.integers(0, 2**32 - 1))
def test_edges_and_rows_are_those_of_the_graph(seed: int) -> None:
    graphs = random_acyclic(np.random.default_rng(seed), 3, 12)
    schedule = graphs.schedule
    assert sorted(schedule.order.tolist()) == list(range(graphs.vertices))
    found: dict[int, list[int]] = {vertex: [] for vertex in range(graphs.vertices)}
    edges = zip(schedule.edge_parent, schedule.edge_child, strict=True)
    for parent, child in edges:
        found[int(schedule.order[parent])].append(int(schedule.order[child]))
    assert found == {v: children_of(graphs, v) for v in range(graphs.vertices)}
    for place in range(4):
        for row, child in enumerate(schedule.children_at(place)):
            children = children_of(graphs, int(schedule.order[row]))
            expected = children[place] if place < len(children) else None
            assert (int(schedule.order[child]) if child < graphs.vertices else None) == expected


def test_sequences_of_a_batch_advance_together() -> None:
    schedule = chains([3, 1, 2]).schedule
    assert np.diff(schedule.bounds).tolist() == [3, 2, 1]
    assert schedule.order.tolist() == [0, 3, 4, 1, 5, 2]


def test_a_cycle_is_refused() -> None:
    graphs = graphs_of_children([[[]], [[], [2], [1]]])
    with pytest.raises(InvalidInput, match="cycle: vertex 2"):
        _ = graphs.schedule
