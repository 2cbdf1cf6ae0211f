"""The curve of DDP's bucket sizes: a ladder first, then sizes between, and lists."""

import math
from dataclasses import replace

import pytest

from autosync.errors import InvalidInput
from autosync.runtime import torch_engines
from autosync.search.designs.bucket_sizes import all_sizes, ladder
from autosync.search.loop.bucket_curve import next_sizes
from autosync.search.loop.earlier_document import EarlierTrial, EarlierTrials
from autosync.search.loop.earlier_trials import usable
from autosync.search.loop.outcome import Outcome, is_ddp
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_loop import tune
from autosync.search.loop.tuning_store import MemoryStore
from autosync.search.space import SPACES
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from autosync.units import MIB
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.search.loop.test_tuning_loop import TablePool

DOMAIN = domain_of(chain_graph(((512, 1024),) * 40), grid_cluster(4, 1, 8.0))
"""40 gradients of 2 MiB."""
BEST_MEBIBYTES = 11
SETTINGS = Settings(budget=20, repeats=4, iterations=2)


def seconds_of(size_mebibytes: float) -> float:
    return 0.1 + 0.02 * math.log2(size_mebibytes / BEST_MEBIBYTES) ** 2


def by_size(strategy: Strategy) -> float:
    """A list takes as long as its largest size, and a little more."""
    arguments = strategy.schedule.ddp
    assert arguments is not None
    assert arguments.gradient_as_bucket_view
    extra = 0.001 if arguments.bucket_limits_bytes else 0.0
    return seconds_of(strategy.schedule.slice_bytes / MIB) + extra


def tuned(store: MemoryStore, settings: Settings = SETTINGS) -> Outcome:
    pool = TablePool(by_size)
    simulator = TimelineSimulator()
    space = SPACES["buckets"]
    return tune(DOMAIN, space, lambda: pool, store, simulator, settings, lambda event: None)


def test_the_fastest_size_is_found() -> None:
    store = MemoryStore()
    outcome = tuned(store)
    searched = [each for each in store.proposals() if each.phase == "search"]
    rungs = {each.strategy.id for each in ladder(DOMAIN)}
    assert is_ddp(searched[0].candidate.strategy)
    assert {each.candidate.strategy.id for each in searched if each.round == 0} == rungs
    later = [each.candidate.origin for each in searched if each.round > 0]
    assert set(later) == {"bucket_size", "bucket_list"}
    possible = min(by_size(each.strategy) for each in all_sizes(DOMAIN))
    assert by_size(outcome.best.strategy) < possible * 1.02
    assert is_ddp(outcome.baseline.strategy)
    assert not outcome.keep_ddp
    assert outcome.speedup > 1.1


def test_a_small_budget_has_ddp_and_sizes_far_apart() -> None:
    store = MemoryStore()
    tuned(store, replace(SETTINGS, budget=3))
    searched = [each.candidate for each in store.proposals() if each.phase == "search"]
    first, small, large = (each.strategy for each in searched)
    assert is_ddp(first)
    assert small.schedule.slice_bytes == ladder(DOMAIN)[0].size_bytes
    assert large.schedule.slice_bytes == ladder(DOMAIN)[-1].size_bytes


def test_a_torch_without_lists_is_asked_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_engines, "takes_bucket_lists", lambda: False)
    store = MemoryStore()
    tuned(store)
    for each in store.proposals():
        arguments = each.candidate.strategy.schedule.ddp
        assert arguments is not None
        assert arguments.bucket_limits_bytes == ()


def test_a_size_that_cannot_be_the_fastest_is_left_out() -> None:
    members = all_sizes(DOMAIN)
    tried: dict[str, float | None] = {each.strategy.id: 0.3 for each in members[::3]}
    found = next_sizes(DOMAIN, tried, 2)
    assert len({each.size_bytes for each in found}) == 2
    assert not {each.strategy.id for each in found} & tried.keys()
    assert next_sizes(DOMAIN, tried | {"a list": 0.1}, 2) == []


def test_nothing_is_taken_over_from_another_tuning() -> None:
    earlier = EarlierTrials((EarlierTrial(ladder(DOMAIN)[0].strategy, 0.1, "bucket_size"),))
    with pytest.raises(InvalidInput, match="is measured anew"):
        usable(earlier, DOMAIN, SPACES["buckets"])
