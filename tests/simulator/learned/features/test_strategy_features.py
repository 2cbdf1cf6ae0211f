"""A change of any choice that messages show changes the features; a change of names does not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Link
from autosync.domain import Domain
from autosync.extensions.staleness.document import Staleness
from autosync.population import encode
from autosync.simulator.learned.features.feature_names import SUMMARY_COLUMNS
from autosync.simulator.learned.features.strategy_features import StrategyFeatures, features_of
from autosync.strategy import (
    AllReduce,
    Encoding,
    Factors,
    ParameterServer,
    ReduceScatter,
    Replica,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
    split,
)
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.worked_examples import random_strategy, strategy_of

SHAPES = ((64, 32), (64,), (128, 64), (128,), (10, 128), (10,))


def domain(nodes: int = 4, ranks: int = 1, gbps: float | tuple[float, ...] = 0.956) -> Domain:
    return domain_of(chain_graph(SHAPES, factor_rows=4), grid_cluster(nodes, ranks, gbps))


def features_for(where: Domain, *strategies: Strategy) -> StrategyFeatures:
    return features_of(where, encode(list(strategies), where))


def same(features: StrategyFeatures, i: int, j: int) -> bool:
    """Whether two strategies look alike."""
    return bool(np.allclose(features.summary[i], features.summary[j], rtol=1e-6, atol=1e-9))


def edited(
    strategy: Strategy, variable: int, change: Callable[[VariableChoice], VariableChoice]
) -> Strategy:
    choices = list(strategy.choices)
    choices[variable] = change(choices[variable])
    return replace(strategy, choices=tuple(choices))


def shards(strategy: Strategy, variable: int, *synchronizers: Synchronizer) -> Strategy:
    return edited(strategy, variable, lambda c: replace(c, shards=synchronizers))


def cut(strategy: Strategy, variable: int, axis: int, parts: int) -> Strategy:
    def change(choice: VariableChoice) -> VariableChoice:
        partition = split(SHAPES[variable], axis, parts)
        return VariableChoice(choice.variable, partition, (choice.shards[0],) * parts)

    return edited(strategy, variable, change)


def reduced(where: Domain) -> Strategy:
    return strategy_of(where, lambda v: AllReduce(v))


def served(where: Domain) -> Strategy:
    return strategy_of(where, lambda v: ParameterServer(v % 2, v))


CHANGES: dict[str, Callable[[Domain], tuple[Strategy, Strategy]]] = {
    "method": lambda d: (reduced(d), shards(reduced(d), 2, ReduceScatter(2))),
    "server method": lambda d: (reduced(d), shards(reduced(d), 2, ParameterServer(0, 2))),
    "factors": lambda d: (reduced(d), shards(reduced(d), 2, Factors(2))),
    "tree": lambda d: (reduced(d), shards(reduced(d), 2, AllReduce(2, "tree"))),
    "hierarchical": lambda d: (reduced(d), shards(reduced(d), 2, AllReduce(2, "hierarchical"))),
    "hierarchical server": lambda d: (
        served(d),
        shards(served(d), 2, ParameterServer(0, 2, hierarchical=True)),
    ),
    "sharded update": lambda d: (
        shards(reduced(d), 2, ReduceScatter(2)),
        shards(reduced(d), 2, ReduceScatter(2, sharded_update=True)),
    ),
    "encoding": lambda d: (
        reduced(d),
        shards(reduced(d), 2, AllReduce(2, encoding=Encoding("bf16"))),
    ),
    "group": lambda d: (reduced(d), shards(reduced(d), 2, AllReduce(4))),
    "load of a server": lambda d: (served(d), shards(served(d), 2, ParameterServer(1, 2))),
    "parts": lambda d: (cut(reduced(d), 2, 0, 2), cut(reduced(d), 2, 0, 3)),
    "order": lambda d: (reduced(d), replace(reduced(d), schedule=Schedule("priority"))),
    "explicit order": lambda d: (
        replace(reduced(d), schedule=Schedule("explicit", positions=(0, 1, 2, 3, 4, 5))),
        replace(reduced(d), schedule=Schedule("explicit", positions=(0, 1, 2, 3, 5, 4))),
    ),
    "slices": lambda d: (
        replace(reduced(d), schedule=Schedule(slice_bytes=8192)),
        replace(reduced(d), schedule=Schedule(slice_bytes=4096)),
    ),
    "overlap": lambda d: (reduced(d), replace(reduced(d), schedule=Schedule(overlap_forward=True))),
    "staleness": lambda d: (reduced(d), reduced(d).carrying(Staleness(1))),
    "shares": lambda d: (
        reduced(d),
        replace(reduced(d), replicas=tuple(map(Replica, range(4), (0.1, 0.2, 0.3, 0.4)))),
    ),
    "explicit ring across nodes": lambda d: (
        shards(reduced(d), 2, AllReduce(2, device_order=(0, 1, 2, 3))),
        shards(reduced(d), 2, AllReduce(2, device_order=(0, 2, 1, 3))),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_choice_changes_the_features(name: str) -> None:
    where = domain(nodes=2, ranks=2)
    before, after = CHANGES[name](where)
    features = features_for(where, before, after)
    assert same(features_for(where, before, before), 0, 1)
    assert not same(features, 0, 1)


def in_rings(choice: VariableChoice) -> VariableChoice:
    """All-reduces as rings: trees have their root at the first host."""
    shards = (
        replace(s, algorithm="ring") if isinstance(s, AllReduce) else s for s in choice.shards
    )
    return replace(choice, shards=tuple(shards))


@pytest.mark.parametrize("seed", range(4))
def test_swapping_identical_hosts_changes_nothing(seed: int) -> None:
    where = domain()
    drawn = random_strategy(where, np.random.default_rng(seed))
    before = replace(drawn, choices=tuple(map(in_rings, drawn.choices)))
    swap = {0: 2, 2: 0}

    def moved(choice: VariableChoice) -> VariableChoice:
        return replace(
            choice,
            shards=tuple(
                replace(s, server=swap.get(s.server, s.server))
                if isinstance(s, ParameterServer)
                else s
                for s in choice.shards
            ),
        )

    after = replace(before, choices=tuple(moved(choice) for choice in before.choices))
    assert same(features_for(where, before, after), 0, 1)


def test_moving_a_shard_to_a_slower_host_shows() -> None:
    where = domain(gbps=(0.956, 0.956, 0.478, 0.956))
    fast = strategy_of(where, lambda v: ParameterServer(0, v))
    slow = strategy_of(where, lambda v: ParameterServer(2, v))
    assert not same(features_for(where, fast, slow), 0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_renaming_groups_changes_nothing(seed: int) -> None:
    where = domain()
    before = random_strategy(where, np.random.default_rng(seed))
    choices = tuple(
        replace(choice, shards=tuple(replace(s, group=97 - s.group) for s in choice.shards))
        for choice in before.choices
    )
    assert same(features_for(where, before, replace(before, choices=choices)), 0, 1)


def test_a_link_slower_than_its_ends_shows() -> None:
    where = domain()
    link = Link((where.cluster.nodes[0].address, where.cluster.nodes[1].address), 0.1)
    other = replace(where, cluster=replace(where.cluster, links=(link,)))
    ours, theirs = features_for(where, reduced(where)), features_for(other, reduced(other))
    assert not np.allclose(ours.summary, theirs.summary)


def test_every_column_has_one_name_and_is_finite() -> None:
    where = domain(nodes=2, ranks=2)
    rng = np.random.default_rng(5)
    features = features_for(where, *(random_strategy(where, rng) for _ in range(40)))
    assert features.summary.shape == (40, len(SUMMARY_COLUMNS))
    assert len(set(SUMMARY_COLUMNS)) == len(SUMMARY_COLUMNS)
    assert np.isfinite(features.summary).all()


def test_taking_some_equals_looking_at_them_alone() -> None:
    where = domain()
    rng = np.random.default_rng(6)
    strategies = [random_strategy(where, rng) for _ in range(8)]
    taken = features_for(where, *strategies).take(np.array([5, 1]))
    alone = features_for(where, strategies[5], strategies[1])
    np.testing.assert_array_equal(taken.summary, alone.summary)
