"""The pruned graph of variables, by hand."""

import numpy as np

from autosync.graph import ModelGraph, Operation, Variable
from simulator.learned.data import features_of
from simulator.learned.variable_graph import forward_places, portion_edges, variable_edges
from tests.simulator.learned.worlds import small_domain, some_strategies


def operation(name: str, inputs: tuple[int, ...], variables: tuple[int, ...] = ()) -> Operation:
    return Operation(name, name, 1, 1, 1, True, inputs, variables)


def diamond() -> ModelGraph:
    """embed -> (left, right) -> add -> head, which uses the embedding's variable again."""
    operations = (
        operation("embed", (), (0,)),
        operation("relu", (0,)),
        operation("left", (1,), (1,)),
        operation("right", (0,), (2,)),
        operation("add", (2, 3)),
        operation("head", (4,), (3, 0)),
    )
    variables = tuple(Variable(f"v{i}", (4, 4)) for i in range(4))
    return ModelGraph(
        "diamond", 1, operations, variables, (5, 4, 3, 2, 1, 0), (3, 1, 2, 0), (0, 2, 3, 5)
    )


def test_edges_pass_operations_without_variables_and_stop_at_others() -> None:
    pairs = set(zip(*variable_edges(diamond()).tolist(), strict=True))
    one_way = {(0, 1), (0, 2), (1, 3), (2, 3), (1, 0), (2, 0), (3, 0)}
    assert pairs == one_way | {(v, u) for u, v in one_way}


def test_places_follow_the_first_use() -> None:
    assert forward_places(diamond()).tolist() == [0, 1, 2, 3]


def test_portions_are_joined_within_their_strategy_only() -> None:
    domain = small_domain(layers=2)
    portions = features_of(domain, some_strategies(domain, 5)).portions
    assert portions is not None
    edges = variable_edges(domain.graph)
    variables = len(domain.graph.variables)
    strategy = np.repeat(np.arange(5), np.diff(portions.first))
    expected = {
        (a, b)
        for a in range(len(strategy))
        for b in range(len(strategy))
        if a != b
        and strategy[a] == strategy[b]
        and (
            portions.variable[a] == portions.variable[b]
            or (portions.variable[a], portions.variable[b])
            in set(zip(*edges.tolist(), strict=True))
        )
    }
    found = portion_edges(portions, edges, variables)
    assert len(found[0]) == len(expected)
    assert set(zip(*found.tolist(), strict=True)) == expected
