"""What of a live tuning's minutes each part of it may take."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.search.loop.outcome import OnEvent, TuningEvent
from autosync.search.loop.proposing import ROUND_TRIALS
from autosync.search.loop.ranking import RankingContext
from autosync.search.loop.settings import Settings
from autosync.search.loop.sources import drawn_shortlist
from autosync.search.loop.tuning_store import Phase
from autosync.search.sampler.sampling import most_draws
from autosync.search.space import Space
from autosync.simulator.simulator_contract import Simulator

GRACE = timedelta(minutes=10)
"""How long beyond the tuning's time ranks wait for what rank 0 says next."""

MOST_MINUTES = 365 * 24 * 60

PROBE_SHARE = 0.1
"""Of the time, at most, for what messages cost."""

SEARCH_SHARE = 0.6
"""Of what is left when the search begins; the rest is for the confirmation."""

RANKING_SHARE = 0.25
"""Of the search's time, at most, for random draws: the other ranks wait meanwhile. Searches from
measured strategies look at no more than are drawn; designs are refined beside that, once."""

FEWEST_TRIALS = 8
"""Strategies that shall fit into the search's time, at the cost of fewer iterations each."""

FEWEST_PROPOSALS = 64
"""Ranked in any case, and once before the search: a ranking's speed is measured on them."""

LEAST_TIMEOUT_SECONDS = 20.0
"""Of a trial's collectives, unless the settings or the process group say less."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """Ends the search at one moment of `clock`, in seconds, and the confirmation at a later one."""

    search_until: float
    until: float
    clock: Clock = time.monotonic

    def over(self, phase: Phase) -> bool:
        """The tuning loop's stop rule."""
        return self.clock() >= (self.search_until if phase == "search" else self.until)


def patience_of(minutes: float) -> timedelta:
    """How long ranks wait for rank 0 in a tuning of so many minutes.

    Raises:
        InvalidInput: `minutes` is negative, NaN, or more than a year.
    """
    if not 0 <= minutes <= MOST_MINUTES:
        raise InvalidInput(
            f"minutes is {minutes}: no time that a tuning may take.",
            thing="minutes",
            value=minutes,
            remedy="Give minutes from 0 to those of a year, 5 by default.",
        )
    return timedelta(minutes=minutes) + GRACE


def collective_timeout(own: timedelta, step_seconds: float, trial_seconds: float) -> timedelta:
    """Of a trial's collectives: long enough for ranks that are 60 steps apart, as far as the job's
    process group (`own`) and the settings allow."""
    usual = timedelta(seconds=max(LEAST_TIMEOUT_SECONDS, 60 * step_seconds))
    return min(usual, own, timedelta(seconds=trial_seconds))


def with_fewer_iterations(settings: Settings, step_seconds: float, seconds: float) -> Settings:
    """The settings, with fewer iterations a trial where steps are long for the time there is."""
    steps = int(SEARCH_SHARE * seconds / (FEWEST_TRIALS * 2 * max(step_seconds, 1e-6)))
    usual = settings.warmup + settings.iterations
    if steps >= usual:
        return settings
    warmup, iterations = min(1, settings.warmup), min(settings.iterations, max(2, steps - 1))
    return replace(settings, warmup=warmup, iterations=iterations)


def with_fewer_proposals(
    settings: Settings,
    domain: Domain,
    space: Space,
    simulator: Simulator,
    until: float,
    on_event: OnEvent,
    clock: Clock = time.monotonic,
) -> Settings:
    """The settings, with fewer proposals a round where ranking them would take more than its share
    of the time until `until`, as a small ranking shows, which also loads what ranking needs."""
    wanted = most_draws(space, settings.proposals)
    if wanted <= FEWEST_PROPOSALS:
        return settings
    context = RankingContext(domain, simulator)

    def ranking(proposals: int) -> float:
        begun = clock()
        drawn_shortlist(context, space, proposals, settings.seed, lambda done: None)
        return clock() - begun

    ranking(1)
    each_seconds = ranking(FEWEST_PROPOSALS) / FEWEST_PROPOSALS
    rounds = -(-settings.budget // ROUND_TRIALS)
    seconds = RANKING_SHARE * SEARCH_SHARE * max(0.0, until - clock())
    affordable = max(FEWEST_PROPOSALS, int(seconds / (rounds * max(each_seconds, 1e-9))))
    if affordable >= wanted:
        return settings
    text = f"there is time to rank {affordable} of {wanted} proposals a round"
    on_event(TuningEvent("ranking", text, 0, affordable))
    return replace(settings, proposals=affordable)
