"""HeteroG's policy: how it groups operations, what its actions become, and what it finds where the
best placement is known."""

from dataclasses import replace

import pytest
import torch

from autosync.domain import Domain
from autosync.extensions.placement.document import modules_of
from autosync.extensions.placement.policy import (
    PlacementPolicy,
    PolicySettings,
    grouped_graph,
    learned_placement,
    strategy_of_actions,
)
from autosync.extensions.placement.proposals import EvaluatedPlacement, PlacementEvaluator
from autosync.search.designs.known_designs import all_reduce_per_variable
from autosync.search.designs.list_schedule import list_schedule
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from autosync.verification import verify
from tests.placed_models import LAYERS, Mixing, Wide, heavy_layers, recorded

SETTINGS = PolicySettings(groups=6)


def learned(
    domain: Domain, base: Strategy, budget: int, settings: PolicySettings = SETTINGS
) -> tuple[EvaluatedPlacement, PlacementEvaluator]:
    evaluator = PlacementEvaluator(domain, TimelineSimulator())
    return learned_placement(evaluator, base, budget, settings), evaluator


def test_operations_join_the_group_that_is_nearest() -> None:
    domain = heavy_layers()
    graph = grouped_graph(domain, LAYERS)
    assert graph.modules == tuple(f"layer{index}" for index in range(LAYERS))
    for operation, group in zip(domain.graph.operations, graph.group.tolist(), strict=True):
        assert operation.name.startswith(graph.modules[group])
    merged = grouped_graph(domain, 1)
    assert len(merged.modules) == 1
    assert set(merged.group.tolist()) == {0}


def test_a_table_without_compute_is_heavy_where_links_are_slow() -> None:
    domain = recorded(Wide(), 3)
    slow = tuple(replace(node, bandwidth_gbps=1e-5) for node in domain.cluster.nodes)
    domain = replace(domain, cluster=replace(domain.cluster, nodes=slow))
    assert "table" in grouped_graph(domain, 4).modules


def test_modules_of_one_device_are_placed_as_their_block() -> None:
    domain = recorded(Wide(), 3)
    base, graph = list_schedule(domain), grouped_graph(domain, 16)
    assert {"block.0", "block.2"} <= set(graph.modules)
    actions = [graph.data_parallel] * len(graph.modules)
    assert strategy_of_actions(domain, base, graph, actions).id == base.id
    first, second = (graph.modules.index(name) for name in ("block.0", "block.2"))
    actions[first] = actions[second] = 0
    found = strategy_of_actions(domain, base, graph, actions)
    verify(found, domain)
    assert [placed.module for placed in modules_of(found)] == ["block"]
    actions[second] = 1
    found = strategy_of_actions(domain, base, graph, actions)
    ranks = {placed.module: placed.ranks for placed in modules_of(found)}
    assert ranks == {"block.0": (0,), "block.2": (1,)}


def test_one_policy_scores_devices_of_clusters_of_any_size() -> None:
    policy = PlacementPolicy(SETTINGS)
    for domain, world in ((heavy_layers(), 2), (recorded(Wide(), 3), 3)):
        graph = grouped_graph(domain, 4)
        scores = policy(graph)
        assert scores.shape == (len(graph.modules), world + 1)
        assert not scores.any()


def test_training_finds_what_slow_links_want() -> None:
    domain = heavy_layers(gbps=0.05)
    base = all_reduce_per_variable(domain)
    found, evaluator = learned(domain, base, 240)
    assert found.step_seconds < evaluator.evaluate([base])[0].step_seconds / 2
    verify(found.strategy, domain)


def test_a_model_that_does_not_fit_is_placed_until_it_fits() -> None:
    domain = heavy_layers(gbps=1e6, memory_gb=0.015)
    found, _ = learned(domain, all_reduce_per_variable(domain), 100)
    assert found.fits
    assert 0 < len(modules_of(found.strategy)) < LAYERS


def test_training_is_repeatable_and_keeps_to_its_budget() -> None:
    domain = heavy_layers((1.0, 3.0), gbps=0.05)
    state = torch.get_rng_state()
    (first, evaluator), (second, _) = (learned(domain, list_schedule(domain), 42) for _ in "ab")
    assert first == second
    assert evaluator.evaluations <= 42
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_is_tried_twice_and_what_is_left_ends_the_training() -> None:
    domain = heavy_layers(gbps=0.05)
    _, evaluator = learned(domain, list_schedule(domain), 1000, PolicySettings(groups=1))
    assert evaluator.evaluations == 3  # the base, and a module on either device


@pytest.mark.parametrize("asked", [0, 3])
def test_a_policy_that_is_stopped_keeps_what_it_has_found(asked: int) -> None:
    domain = heavy_layers(gbps=0.05)
    base = list_schedule(domain)
    answers = iter([False] * asked + [True])
    evaluator = PlacementEvaluator(domain, TimelineSimulator(), lambda: next(answers))
    found = learned_placement(evaluator, base, 1000, SETTINGS)
    assert found.step_seconds <= evaluator.evaluate([base])[0].step_seconds
    assert asked or found.strategy == base


def test_a_model_without_modules_to_place_keeps_its_base() -> None:
    domain = recorded(Mixing().norm[1], 2)
    base = list_schedule(domain)
    assert learned(domain, base, 40)[0].strategy == base
