"""The learned policy: groups, actions, and what training finds where the best is known."""

from collections import deque
from dataclasses import replace

import pytest
import torch

from autosync.codes import Op
from autosync.domain import Domain
from autosync.plan import compile_plans
from autosync.population import encode
from autosync.search.designs.known_designs import all_reduce_per_variable
from autosync.search.designs.list_schedule import list_schedule
from autosync.search.placement.operation_groups import OperationGroups, group_operations
from autosync.search.placement.placeable_modules import modules_to_place
from autosync.search.placement.placement_actions import (
    EVEN_ALL_REDUCE,
    EVEN_SERVER,
    FAIR_ALL_REDUCE,
    allowed_actions,
    strategy_of_actions,
)
from autosync.search.placement.policy_network import PlacementPolicy
from autosync.search.placement.policy_training import (
    PolicySettings,
    learned_placement,
    policy_task,
    train_policy,
)
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from autosync.verification import verify
from tests.placed_models import Wide, heavy_layers, recorded

DOMAIN = recorded(Wide(), 3)
SETTINGS = PolicySettings(groups=6)


def test_operations_join_the_nearest_of_the_heaviest() -> None:
    profile = DOMAIN.profile
    seconds = tuple(1.0 + (index % 5 == 0) for index in range(len(profile.forward_seconds)))
    domain = replace(DOMAIN, profile=replace(profile, forward_seconds=seconds))
    heavy = [index for index, second in enumerate(seconds) if second > 1]
    groups = group_operations(domain, len(heavy))
    assert [int(groups.group[index]) for index in heavy] == list(range(len(heavy)))
    for operation in range(len(seconds)):
        hops = _hops(domain, operation)
        own = heavy[int(groups.group[operation])]
        assert hops[own] == min(hops.get(index, 99) for index in heavy)
    leaves = [each.name for each in modules_to_place(domain) if each.is_leaf]
    assert sorted(name for modules in groups.modules for name in modules) == sorted(leaves)


def _hops(domain: Domain, start: int) -> dict[int, int]:
    neighbours: dict[int, set[int]] = {}
    for index, operation in enumerate(domain.graph.operations):
        for source in operation.inputs:
            neighbours.setdefault(index, set()).add(source)
            neighbours.setdefault(source, set()).add(index)
    found, waiting = {start: 0}, deque([start])
    while waiting:
        operation_index = waiting.popleft()
        for other in neighbours.get(operation_index, ()):
            if other not in found:
                found[other] = found[operation_index] + 1
                waiting.append(other)
    return found


def made(groups: OperationGroups, domain: Domain, actions: list[int]) -> Strategy:
    base = list_schedule(domain)
    return strategy_of_actions(domain, base, groups, modules_to_place(domain), actions)


def test_a_policy_that_is_stopped_keeps_what_it_has_found() -> None:
    domain = heavy_layers(gbps=0.05)
    base, simulator = all_reduce_per_variable(domain), TimelineSimulator()
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 3

    task = policy_task(domain, simulator, base, SETTINGS, stop)
    train_policy(PlacementPolicy(), [task], 1000, SETTINGS)
    assert len(task.curve) == 3
    assert task.best.step_seconds <= task.base.step_seconds
    at_once = learned_placement(domain, simulator, base, settings=SETTINGS, stop=lambda: True)
    assert at_once.strategy == base


def test_actions_become_placements_servers_and_shares() -> None:
    domain = heavy_layers((1.0, 2.0))
    groups = group_operations(domain, 4)
    world = domain.world_size
    even = made(groups, domain, [world + EVEN_ALL_REDUCE] * 4)
    assert even.id == list_schedule(domain).id
    mixed = made(groups, domain, [0, world + EVEN_SERVER, world + FAIR_ALL_REDUCE, world])
    verify(mixed, domain)
    where = {placed.module: placed for placed in mixed.placement}
    assert where["layer0"].ranks == (0,)
    assert where["layer2"].shares == pytest.approx((2 / 3, 1 / 3))
    assert set(where) == {"layer0", "layer2"}
    assert mixed.choices[1].shards[0].kind == "parameter_server"
    plans = compile_plans(encode([mixed], domain), domain)
    assert {Op.PUSH, Op.ALL_REDUCE} <= {Op(code) for code in plans.operation.tolist()}
    fair = made(groups, domain, [world + FAIR_ALL_REDUCE] * 4)
    assert [replica.share for replica in fair.replicas] == pytest.approx((0.6875, 0.3125), abs=0.03)
    assert not fair.placement


def test_parts_of_one_place_are_placed_as_their_block() -> None:
    groups = group_operations(DOMAIN, len(DOMAIN.graph.operations))
    actions = [
        1 if any(name.startswith("block") for name in modules) else 3 + EVEN_ALL_REDUCE
        for modules in groups.modules
    ]
    assert [placed.module for placed in made(groups, DOMAIN, actions).placement] == ["block"]


def test_shares_by_speed_take_two_speeds() -> None:
    assert allowed_actions(heavy_layers()).tolist() == [True] * 4 + [False] * 2
    assert allowed_actions(heavy_layers((1.0, 2.0))).all()


def test_training_finds_what_slow_links_want() -> None:
    domain = heavy_layers(gbps=0.05)
    base = all_reduce_per_variable(domain)
    found = learned_placement(domain, TimelineSimulator(), base, 240, settings=SETTINGS)
    before = policy_task(domain, TimelineSimulator(), base, SETTINGS).base
    assert found.step_seconds < before.step_seconds / 2
    verify(found.strategy, domain)


def test_training_is_repeatable_and_keeps_to_its_budget() -> None:
    domain = heavy_layers((1.0, 3.0), gbps=0.05)
    curves = []
    for _ in range(2):
        torch.manual_seed(5)
        task = policy_task(domain, TimelineSimulator(), list_schedule(domain), SETTINGS)
        train_policy(PlacementPolicy(), [task], 40, SETTINGS)
        assert task.judge.evaluations <= 1 + 40 + SETTINGS.samples
        curves.append(task.curve)
    assert curves[0] == curves[1]


def test_one_policy_serves_clusters_of_any_size() -> None:
    policy = PlacementPolicy()
    tasks = [
        policy_task(domain, TimelineSimulator(), list_schedule(domain), SETTINGS)
        for domain in (heavy_layers(), recorded(Wide(), 3))
    ]
    train_policy(policy, tasks, 32, SETTINGS)
    for task, world in zip(tasks, (2, 3), strict=True):
        logits = policy(task.given)
        assert logits.shape == (task.groups.count, world + 4)
        assert task.best.rank <= task.base.rank
