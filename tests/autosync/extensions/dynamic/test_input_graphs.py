"""Input graphs say what they are, and what cannot be one is refused. Frontiers are as Cavs'
algorithm 6 says: all vertices whose children have been evaluated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.errors import InvalidInput
from autosync.extensions.dynamic.input_graphs import (
    ROOT,
    InputGraphs,
    chains,
    graphs_of_children,
    join_graphs,
    trees,
)
from tests.autosync.extensions.dynamic.drawn_graphs import random_acyclic


def children_of(graphs: InputGraphs) -> list[list[int]]:
    first = graphs.first_child
    return [graphs.child[first[v] : first[v + 1]].tolist() for v in range(graphs.vertices)]


def test_a_chain_has_one_child_each() -> None:
    graphs = chains([3, 1, 2])
    assert children_of(graphs) == [[], [0], [1], [], [], [4]]
    assert graphs.graph.tolist() == [0, 0, 0, 1, 2, 2]
    assert graphs.roots.tolist() == [2, 3, 5]
    assert (graphs.samples, graphs.vertices, graphs.most_children) == (3, 6, 1)


def test_a_tree_is_given_by_parents() -> None:
    graphs = trees([[2, 2, ROOT], [ROOT, 0, 0, 0]])
    assert children_of(graphs) == [[], [], [0, 1], [4, 5, 6], [], [], []]
    assert graphs.roots.tolist() == [2, 3]
    assert graphs.most_children == 3


def test_children_keep_their_order_and_may_be_shared() -> None:
    graphs = graphs_of_children([[[], [0], [1, 0, 0]]])
    assert children_of(graphs) == [[], [0], [1, 0, 0]]
    assert graphs.roots.tolist() == [2]


def test_joined_graphs_are_a_batch() -> None:
    joined = join_graphs([chains([2, 1]), trees([[ROOT, 0]])])
    assert children_of(joined) == [[], [0], [], [4], []]
    assert joined.graph.tolist() == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("first_child", "child", "graph", "words"),
    [
        ([0], [], [], "no vertex"),
        ([0, 1], [], [0], "first_child"),
        ([0, 0, 1], [7], [0, 0], "an edge to another"),
        ([0, 0, 1], [-2], [0, 0], "an edge to another"),
        ([0, 0, 1], [0], [0, 1], "from one sample to another"),
        ([0, 0, 0], [], [1, 0], "order of their samples"),
        ([0, 1, 0], [], [0, 0], "first_child"),
    ],
)
def test_malformed_graphs_are_refused(
    first_child: list[int], child: list[int], graph: list[int], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        InputGraphs(*(np.array(part, dtype=np.int64) for part in (first_child, child, graph)))


def test_empty_sequences_and_malformed_trees_are_refused() -> None:
    with pytest.raises(InvalidInput, match="Leave empty sequences out"):
        chains([3, 0])
    with pytest.raises(InvalidInput, match="parents"):
        trees([[5]])
    with pytest.raises(InvalidInput, match="no sample"):
        join_graphs([])


def task_of_vertices(graphs: InputGraphs) -> list[int]:
    schedule = graphs.schedule
    tasks = np.repeat(np.arange(len(schedule.bounds) - 1), np.diff(schedule.bounds))
    return [int(task) for task in tasks[schedule.row]]


@given(seed=st.integers(0, 2**32 - 1), samples=st.integers(1, 6), size=st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_a_vertex_is_evaluated_right_after_the_last_of_its_children(
    seed: int, samples: int, size: int
) -> None:
    graphs = random_acyclic(np.random.default_rng(seed), samples, size)
    task = task_of_vertices(graphs)
    for vertex in range(graphs.vertices):
        children = children_of(graphs)[vertex]
        assert task[vertex] == max((task[child] + 1 for child in children), default=0)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_edges_and_rows_are_those_of_the_graph(seed: int) -> None:
    graphs = random_acyclic(np.random.default_rng(seed), 3, 12)
    schedule = graphs.schedule
    assert sorted(schedule.order.tolist()) == list(range(graphs.vertices))
    found: dict[int, list[int]] = {vertex: [] for vertex in range(graphs.vertices)}
    edges = zip(schedule.edge_parent, schedule.edge_child, strict=True)
    for parent, child in edges:
        found[int(schedule.order[parent])].append(int(schedule.order[child]))
    assert found == dict(enumerate(children_of(graphs)))
    for place in range(4):
        for row, child in enumerate(schedule.children_at(place)):
            children = children_of(graphs)[int(schedule.order[row])]
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
