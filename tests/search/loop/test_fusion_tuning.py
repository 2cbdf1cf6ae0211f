import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern, WhiteKernel

from autosync.cluster import Device, MessageCost
from autosync.search.designs.design_table import hand_designed
from autosync.search.loop.fusion_tuning import (
    FAMILIES,
    FIRST_SPREAD,
    LEAST_SPREAD,
    LENGTHS_OCTAVES,
    NOISE,
    built_strategies,
    fused_strategies,
    next_fusion,
    speed_improvement,
    speeds_over_sizes,
)
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_loop import tune
from autosync.search.loop.tuning_store import MemoryStore
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from autosync.units import MIB
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.search.loop.test_tuning_loop import TablePool
from tests.simulator.worked_examples import on_devices

DOMAIN = domain_of(chain_graph(((512, 1024),) * 40), grid_cluster(4, 1, 8.0))
"""40 gradients of 2 MiB."""
SPACE = Space()


def test_designs_are_members() -> None:
    designs = {(strategy.id, name) for name, strategy in hand_designed(DOMAIN, SPACE)}
    known = (("dear", 25, "dear"), ("all_reduce", 5, "all_reduce_5mb"))
    for family, first_mib, name in (*known, ("all_reduce", 25, "all_reduce_25mb")):
        members = {
            each.size_bytes: each.strategy for each in fused_strategies(DOMAIN, SPACE, family)
        }
        assert (members[first_mib * MIB].id, name) in designs
        assert len({strategy.id for strategy in members.values()}) == len(members) > 3


def test_a_family_without_a_trial_waits() -> None:
    assert next_fusion(DOMAIN, SPACE, {}) is None
    assert next_fusion(DOMAIN, SPACE, {"another": 0.1}) is None


def tuned(seconds: Callable[[float], float], trials: int) -> list[int]:
    """Sizes in MiB that are tried after DeAR's 25 MiB, where they take so many seconds."""
    members = {each.strategy.id: each for each in fused_strategies(DOMAIN, SPACE, "dear")}
    first = next(key for key, each in members.items() if each.size_bytes == 25 * MIB)
    measured: dict[str, float | None] = {first: seconds(25.0)}
    tried = []
    for _ in range(trials):
        choice = next_fusion(DOMAIN, SPACE, measured)
        if choice is None:
            break
        assert choice.family == "dear"
        assert choice.fused.strategy.id not in measured
        tried.append(choice.fused.size_bytes // MIB)
        measured[choice.fused.strategy.id] = seconds(choice.fused.size_bytes / MIB)
    return tried


def test_the_best_size_is_found_in_few_trials() -> None:
    def seconds(size: float) -> float:
        return 0.1 + 0.02 * math.log2(size / 7) ** 2

    sizes = [each.size_bytes / MIB for each in fused_strategies(DOMAIN, SPACE, "dear")]
    tried = tuned(seconds, 8)
    assert min(map(seconds, tried)) < min(map(seconds, sizes)) * 1.02


def test_a_family_that_cannot_win_gets_no_more_trials() -> None:
    members = fused_strategies(DOMAIN, SPACE, "dear")
    measured: dict[str, float | None] = {each.strategy.id: 0.3 for each in members[::3]}
    assert next_fusion(DOMAIN, SPACE, measured) is not None
    assert next_fusion(DOMAIN, SPACE, measured | {"a faster one": 0.1}) is None


def test_what_failed_is_not_proposed_again() -> None:
    members = fused_strategies(DOMAIN, SPACE, "dear")
    failed: dict[str, float | None] = {each.strategy.id: None for each in members[1:]}
    assert next_fusion(DOMAIN, SPACE, failed | {members[0].strategy.id: 0.1}) is None


def test_expected_improvement_weighs_the_mean_and_the_doubt() -> None:
    measured = np.array([1.0, 1.2])  # their standard deviation is 0.1, so 1.21 is to be exceeded
    gains = speed_improvement(np.array([1.21, 1.21, 1.41]), np.array([0.1, 0.2, 1e-9]), measured)
    np.testing.assert_allclose(gains, [0.0398942, 0.0797885, 0.2], rtol=1e-5)


def test_the_process_follows_its_trials_and_doubts_elsewhere() -> None:
    sizes, speeds = np.array([1.0, 4.0, 16.0]) * MIB, np.array([0.0, 0.4, 0.1])
    mean, std = speeds_over_sizes(sizes, speeds, np.array([1.0, 4.0, 16.0, 100.0]) * MIB)
    np.testing.assert_allclose(mean[:3], speeds, atol=0.03)
    assert std[3] > 2 * std[:3].max()


@pytest.mark.parametrize("trials", [1, 2, 3, 7, 24])
def test_the_process_is_that_of_scikit_learn(trials: int) -> None:
    rng = np.random.default_rng(trials)
    sizes = np.sort(rng.uniform(1, 100, trials)) * MIB
    speeds = 0.3 * np.sin(np.log2(sizes)) + rng.normal(0.0, 0.02, trials)
    asked = np.geomspace(1.0, 100.0, 32) * MIB
    spread = max(float(speeds.std()), LEAST_SPREAD) if trials > 1 else FIRST_SPREAD

    def likelihood(process: GaussianProcessRegressor) -> float:
        return float(process.log_marginal_likelihood_value_)

    processes = [
        GaussianProcessRegressor(Matern(each, "fixed", nu=2.5) + WhiteKernel(NOISE, "fixed"))
        for each in LENGTHS_OCTAVES
    ]
    standard = (speeds - speeds.mean()) / spread
    best = max((each.fit(np.log2(sizes)[:, None], standard) for each in processes), key=likelihood)
    mean, std = best.predict(np.log2(asked)[:, None], return_std=True)
    own_mean, own_std = speeds_over_sizes(sizes, speeds, asked)
    np.testing.assert_allclose(own_mean, mean * spread + speeds.mean(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(own_std, std * spread, rtol=1e-6)


def test_sizes_are_built_once_though_every_round_corrects_costs() -> None:
    built_strategies.cache_clear()
    rounds = 5
    for number in range(rounds):
        costs = (MessageCost("all_reduce", 1e-3 * (1 + number)),)
        cluster = replace(DOMAIN.cluster, costs=costs, overlap_slowdown=0.1 * number)
        calibrated = replace(DOMAIN, cluster=cluster)
        for family in FAMILIES:
            fused = fused_strategies(calibrated, SPACE, family)
            assert fused == built_strategies.__wrapped__(calibrated, SPACE, family)
    cache = built_strategies.cache_info()
    assert (cache.misses, cache.hits) == (len(FAMILIES), (rounds - 1) * len(FAMILIES))


def test_a_tuning_spends_trials_on_a_buffer_that_could_win() -> None:
    """DeAR alone is fast, at 6 MiB most."""

    def table(strategy: Strategy) -> float:
        if strategy.name.startswith("dear_") and strategy.name.endswith("mb"):
            return 0.05 + 0.01 * abs(math.log2(float(strategy.name[5:-2]) / 6))
        return 0.07 if strategy.name == "dear" else 0.2

    store, pool = MemoryStore(), TablePool(table)
    settings = Settings(
        budget=48, proposals=32, repeats=1, first_designs=24, refined_share=0.0, neighbour_share=0.0
    )
    tune(DOMAIN, SPACE, lambda: pool, store, TimelineSimulator(), settings, lambda event: None)
    tuned = [
        each
        for each in store.proposals()
        if each.phase == "search" and each.candidate.origin == "dear_tuned"
    ]
    assert len(tuned) >= 3
    assert len({each.round for each in tuned}) == len(tuned), "one a round"
    assert min(each.round for each in tuned) > 0


def test_what_devices_have_no_room_for_is_no_size_to_try() -> None:
    for family in ("dear", "all_reduce"):
        everywhere = fused_strategies(DOMAIN, SPACE, family)
        large, small = (on_devices(DOMAIN, Device("cpu", memory_gb=gb)) for gb in (10.0, 0.1))
        assert fused_strategies(large, SPACE, family) == everywhere
        assert fused_strategies(small, SPACE, family) == ()
