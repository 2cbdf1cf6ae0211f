"""What networks read: the pruned graph of variables, standardised columns, subsets of a batch."""

from typing import get_args

import numpy as np
import pytest
import torch

from autosync.graph import ModelGraph, Operation, Variable
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.models.recipe import NetworkKind
from autosync.simulator.learned.networks import network_model
from autosync.simulator.learned.networks.network_model import (
    NetworkModel,
    batch_of,
    forward_places,
    node_edges,
    operation_nodes,
    scaling_of,
    variable_edges,
)
from autosync.simulator.learned.networks.network_training import subset
from tests.domains import chain_graph
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


def test_variables_of_one_operation_are_one_node() -> None:
    graph = chain_graph(((4, 4), (4,), (4, 4), (4,), (4, 4)))
    nodes = operation_nodes(graph)
    assert nodes[forward_order(graph)].tolist() == sorted(nodes.tolist())
    assert operation_nodes(diamond()).tolist() == [0, 1, 2, 3]
    one_way = {(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)}
    pairs = set(zip(*node_edges(diamond()).tolist(), strict=True))
    assert pairs == one_way | {(v, u) for u, v in one_way}


def forward_order(graph: ModelGraph) -> np.ndarray:
    return np.argsort(forward_places(graph))


def test_a_subset_of_a_batch_is_scored_as_in_the_whole() -> None:
    """Each strategy's graph is its own: the others in a batch do not matter."""
    domain = small_domain(layers=2)
    features = features_of(domain, some_strategies(domain, 5))
    assert features.shards is not None
    scalings = scaling_of([features.shards.values]), scaling_of([features.summary])
    batch = batch_of(features, domain, *scalings)
    for kind in get_args(NetworkKind):
        network = NetworkModel(kind).build()
        last = network.head[-1]
        assert isinstance(last, torch.nn.Linear)
        torch.nn.init.normal_(last.weight)
        chosen = np.array([3, 1])
        with torch.no_grad():
            whole, part = network(batch), network(subset(batch, chosen))
        torch.testing.assert_close(part, whole[chosen])
        assert whole.std() > 0


def test_columns_are_standardised_alike_in_blocks_and_each_domain_counts_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    tables = [rng.standard_normal((rows, 3)) * (1.0, 0.0, 9.0) for rows in (10, 25)]
    monkeypatch.setattr(network_model, "ROWS", 7)
    scaling = scaling_of(tables)
    center = (tables[0].mean(axis=0) + tables[1].mean(axis=0)) / 2
    squares = [((table - center) ** 2).mean(axis=0) for table in tables]
    scale = np.sqrt((squares[0] + squares[1]) / 2)
    np.testing.assert_allclose(scaling.center, center)
    np.testing.assert_allclose(scaling.scale, (scale[0], np.inf, scale[2]))
    expected = np.clip((tables[1] - center)[:, [0, 2]] / scale[[0, 2]], -5.0, 5.0)
    standard = scaling(tables[1])
    np.testing.assert_array_equal(standard[:, [0, 2]], expected.astype(np.float32))
    assert not standard[:, 1].any()
