"""Choices for groups, and the strategies that they make."""

from dataclasses import replace

import pytest

from autosync.codes import Op
from autosync.domain import Domain
from autosync.extensions.placement.document import modules_of
from autosync.extensions.placement.policy_actions import (
    FOLLOW,
    OTHER_SHARES,
    SERVER,
    OperationGroups,
    PlacementActions,
    group_operations,
    placement_actions,
    strategy_of_actions,
)
from autosync.plan import compile_plans
from autosync.population import encode
from autosync.search.designs.list_schedule import list_schedule
from autosync.search.domain_facts import replica_layouts
from autosync.search.space import Space
from autosync.strategy import Strategy
from autosync.verification import verify
from tests.domains import grid_cluster
from tests.placed_models import LAYERS, SparseTable, Wide, heavy_layers, recorded

DOMAIN = recorded(Wide(), 3)


def asked(domain: Domain, most: int = LAYERS) -> tuple[OperationGroups, PlacementActions]:
    groups = group_operations(domain, most)
    return groups, placement_actions(domain, list_schedule(domain), groups)


def made(domain: Domain, schemes: list[int], base: Strategy | None = None) -> Strategy:
    """schemes: of each group, behind the sets of devices; negative: rank -1 - scheme."""
    groups, actions = asked(domain)
    chosen = [-1 - each if each < 0 else len(actions.sets) + each for each in schemes]
    return strategy_of_actions(domain, base or list_schedule(domain), groups, actions.sets, chosen)


def test_choices_become_placements_servers_and_shares() -> None:
    domain = heavy_layers((1.0, 2.0))
    assert made(domain, [FOLLOW] * 4).id == list_schedule(domain).id
    mixed = made(domain, [-1, SERVER, OTHER_SHARES, FOLLOW])
    verify(mixed, domain)
    where = {placed.module: placed for placed in modules_of(mixed)}
    assert where["layer0"].ranks == (0,)
    assert where["layer2"].shares == pytest.approx((2 / 3, 1 / 3))
    assert set(where) == {"layer0", "layer2"}
    assert mixed.choices[1].shards[0].kind == "parameter_server"
    plans = compile_plans(encode([mixed], domain), domain)
    assert {Op.PUSH, Op.ALL_REDUCE} <= {Op(code) for code in plans.operation.tolist()}


def test_a_base_by_speed_deals_evenly() -> None:
    domain = heavy_layers((1.0, 2.0))
    fair = replica_layouts(domain, Space(uneven_shares=True))[1]
    base = replace(list_schedule(domain), replicas=fair)
    found = made(domain, [OTHER_SHARES, FOLLOW, FOLLOW, FOLLOW], base)
    assert found.replicas == fair
    assert [placed.shares for placed in modules_of(found)] == [(0.5, 0.5)]


def test_parts_of_one_place_are_placed_as_their_block() -> None:
    groups, actions = asked(DOMAIN, 16)
    assert {"block.0", "block.2"} <= set(groups.modules)
    chosen = [0 if name.startswith("block") else actions.follow for name in groups.modules]
    base = list_schedule(DOMAIN)
    found = strategy_of_actions(DOMAIN, base, groups, actions.sets, chosen)
    assert [placed.module for placed in modules_of(found)] == ["block"]
    chosen[groups.modules.index("block.2")] = 1
    found = strategy_of_actions(DOMAIN, base, groups, actions.sets, chosen)
    assert {placed.module: placed.ranks for placed in modules_of(found)} == {
        "block.0": (0,),
        "block.2": (1,),
    }


def test_shares_by_speed_take_two_speeds() -> None:
    assert asked(heavy_layers())[1].allowed[0].tolist() == [True] * 4 + [False] * 2
    assert asked(heavy_layers((1.0, 2.0)))[1].allowed.all()


def test_a_sparse_table_lives_on_one_rank_or_on_all() -> None:
    domain = recorded(SparseTable(), 4)
    domain = replace(domain, cluster=grid_cluster(2, 2))
    groups, actions = asked(domain)
    assert actions.sets == ((0,), (1,), (2,), (3,), (0, 1), (2, 3))
    allowed = dict(zip(groups.modules, actions.allowed[:, :6].tolist(), strict=True))
    assert allowed == {"table": [True] * 4 + [False] * 2, "last": [True] * 6}
