"""Input graphs say what they are, and what cannot be one is refused."""

import numpy as np
import pytest

from autosync.errors import InvalidInput
from autosync.extensions.dynamic.input_graphs import (
    ROOT,
    InputGraphs,
    chains,
    graphs_of_children,
    join_graphs,
    trees,
)


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
def test_what_is_no_graph_is_refused(
    first_child: list[int], child: list[int], graph: list[int], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        InputGraphs(*(np.array(part, dtype=np.int64) for part in (first_child, child, graph)))


def test_what_makes_no_graph_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Leave empty sequences out"):
        chains([3, 0])
    with pytest.raises(InvalidInput, match="parents"):
        trees([[5]])
    with pytest.raises(InvalidInput, match="no sample"):
        join_graphs([])
