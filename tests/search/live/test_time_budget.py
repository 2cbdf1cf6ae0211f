"""What each part of a live tuning may take of its minutes, by a clock of the test's."""

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import Population
from autosync.search.live.time_budget import (
    FEWEST_PROPOSALS,
    GRACE,
    RANKING_SHARE,
    SEARCH_SHARE,
    TimeBudget,
    collective_timeout,
    patience_of,
    with_fewer_iterations,
    with_fewer_proposals,
)
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.settings import Settings
from autosync.search.space import SPACES, Space
from tests.domains import domain_of

SETTINGS = Settings(budget=16, proposals=4_000)
"""Two rounds."""


@dataclass
class SlowSimulator:
    """Takes `each_seconds` for a proposal, on the clock that it is."""

    each_seconds: float
    now: float = 0.0
    name: str = "slow"

    def predict(self, domain: Domain, population: Population) -> NDArray[np.float64]:
        self.now += self.each_seconds * len(population)
        return np.ones(len(population))

    def clock(self) -> float:
        return self.now


def proposals(simulator: SlowSimulator, seconds: float) -> tuple[int, list[str]]:
    """How many are affordable in a tuning of so many seconds; and what events tell."""
    events: list[TuningEvent] = []
    found = with_fewer_proposals(
        SETTINGS, domain_of(), Space(), simulator, seconds, events.append, simulator.clock
    )
    return found.proposals, [event.message for event in events]


def test_a_slow_ranking_leaves_time_for_trials() -> None:
    simulator = SlowSimulator(0.1)
    found, events = proposals(simulator, 300.0)
    assert FEWEST_PROPOSALS < found < SETTINGS.proposals
    assert 2 * found * simulator.each_seconds <= RANKING_SHARE * SEARCH_SHARE * 300.0
    assert events == [f"there is time to rank {found} of 4000 proposals a round"]


def test_a_fast_ranking_is_as_it_was_asked_for() -> None:
    assert proposals(SlowSimulator(1e-4), 300.0) == (SETTINGS.proposals, [])


def test_without_time_a_few_are_ranked() -> None:
    assert proposals(SlowSimulator(1.0), 30.0)[0] == FEWEST_PROPOSALS


@pytest.mark.parametrize(
    ("step_seconds", "warmup", "iterations"), [(0.01, 2, 5), (2.0, 1, 4), (100.0, 1, 2)]
)
def test_long_steps_get_fewer_iterations(step_seconds: float, warmup: int, iterations: int) -> None:
    found = with_fewer_iterations(SETTINGS, step_seconds, 280.0)
    assert (found.warmup, found.iterations) == (warmup, iterations)


def test_few_iterations_do_not_get_more() -> None:
    few = Settings(warmup=0, iterations=1)
    assert with_fewer_iterations(few, 100.0, 280.0) == few


def test_of_sizes_of_buckets_nothing_is_drawn_that_could_be_ranked() -> None:
    simulator, events = SlowSimulator(1.0), list[TuningEvent]()
    found = with_fewer_proposals(
        SETTINGS, domain_of(), SPACES["buckets"], simulator, 30.0, events.append, simulator.clock
    )
    assert (found, events, simulator.now) == (SETTINGS, [], 0.0)


@pytest.mark.parametrize("minutes", [-1.0, float("nan"), float("inf"), 1e9])
def test_minutes_that_are_no_time_are_refused(minutes: float) -> None:
    with pytest.raises(InvalidInput, match="minutes is"):
        patience_of(minutes)
    assert patience_of(0) == GRACE


@pytest.mark.parametrize(("now", "search", "confirm"), [(9, 0, 0), (10, 1, 0), (20, 1, 1)])
def test_the_confirmation_has_its_own_time(now: float, search: bool, confirm: bool) -> None:
    budget = TimeBudget(search_until=10.0, until=20.0, clock=lambda: now)
    assert budget.over("search") == search
    assert budget.over("confirm") == confirm


@pytest.mark.parametrize(
    ("own", "step_seconds", "trial_seconds", "expected"),
    [(600, 0.1, 120.0, 20), (600, 1.0, 120.0, 60), (600, 9.0, 120.0, 120), (15, 1.0, 120.0, 15)],
)
def test_a_collective_waits_no_longer_than_anything_allows(
    own: int, step_seconds: float, trial_seconds: float, expected: int
) -> None:
    found = collective_timeout(timedelta(seconds=own), step_seconds, trial_seconds)
    assert found == timedelta(seconds=expected)
