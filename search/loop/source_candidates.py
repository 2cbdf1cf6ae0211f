"""What a round tries of each source of proposals: random draws, local searches from the fastest
measured, their neighbours. `round_shares` says how many of each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population, concatenate, decode, encode
from autosync.search.loop.acquisition import expected_improvement
from autosync.search.loop.message_equality import message_shares
from autosync.search.loop.outcome import MeasuredRow, OnEvent, TuningEvent
from autosync.search.loop.round_shares import earned_share, passed_on
from autosync.search.loop.selection import select
from autosync.search.loop.settings import Acquisition, Settings
from autosync.search.loop.shortlists import (
    Judge,
    Shortlist,
    drawn_shortlist,
    neighbour_shortlist,
    parent_rows,
    refined_shortlist,
)
from autosync.search.loop.tuning_store import Candidate, Origin, Source
from autosync.search.space import Space
from autosync.simulator.fitting.iteration_costs import recalibrated
from autosync.simulator.message_digests import digests_of
from autosync.simulator.simulator_contract import Learner, Simulator
from autosync.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Searched:
    """What searches begin from. parents: measured strategies, the fastest first. step_seconds
    `(parents,)`: measured. calibrated: the domain with costs that the trials have corrected."""

    parents: Population
    step_seconds: NDArray[np.float64]
    calibrated: Domain

    @staticmethod
    def after(
        domain: Domain, simulator: Simulator, fastest: Sequence[MeasuredRow], settings: Settings
    ) -> "Searched":
        """fastest: measured, the fastest first. A simulator that learns leaves the domain's costs
        as they were probed; here they are corrected all the same."""
        measured = encode([row.candidate.strategy for row in fastest], domain)
        seconds = np.array([row.step_seconds for row in fastest], dtype=np.float64)
        calibrated = domain
        if isinstance(simulator, Learner) and settings.refined_share > 0:
            calibrated = recalibrated(domain, measured, seconds)
        rows = parent_rows(domain, measured)
        return Searched(measured.take(rows), seconds[rows], calibrated)


@dataclass(frozen=True, slots=True)
class Sources:
    """Of one round. number: the round's. best_seconds: of the fastest measured, if any is."""

    domain: Domain
    space: Space
    simulator: Simulator
    settings: Settings
    number: int
    best_seconds: float | None
    searched: Searched
    on_event: OnEvent

    def candidates(
        self, shares: Sequence[tuple[Source, int]], insured: int, known: Sequence[Strategy]
    ) -> tuple[list[Candidate], list[float]]:
        """What each source finds beside `known` and what those before it found; what its best is
        expected to gain (see `gain_of`).

        shares: trials of each, in order. One that does not earn all of them leaves the rest to
        those after it. insured: of each, in any case.
        """
        chosen: list[Candidate] = []
        gains: list[float] = []
        while shares:
            (origin, count), *others = shares
            if not count:
                shares = others
                continue
            tried = [*known, *(each.strategy for each in chosen)]
            acquisition = self.settings.acquisition
            judge = judge_of(self.domain, self.simulator, acquisition, self.best_seconds, tried)
            listed = self.shortlist(origin, judge)
            gains.append(gain_of(listed, judge))
            earned = earned_share(listed, judge, count, insured) if others else count
            chosen += picked(judge, listed, self.settings, self.number, earned, origin)
            shares = passed_on(others, count - earned)
        return chosen, gains

    def shortlist(self, origin: Source, judge: Judge) -> Shortlist:
        """What a source finds most promising."""
        space, searched, proposals = self.space, self.searched, self.settings.proposals
        seed = self.settings.seed + self.number
        match origin:
            case "sampled":
                return drawn_shortlist(judge, space, proposals, seed, self._progress)
            case "refined":
                return refined_shortlist(
                    judge,
                    space,
                    searched.parents,
                    searched.step_seconds,
                    searched.calibrated,
                    proposals,
                    seed,
                )
            case "neighbour":
                return neighbour_shortlist(judge, space, searched.parents, proposals, seed)

    def _progress(self, done: int) -> None:
        text = f"ranking proposals, round {self.number + 1}"
        self.on_event(TuningEvent("ranking", text, done, self.settings.proposals))


def judge_of(
    domain: Domain,
    simulator: Simulator,
    acquisition: Acquisition,
    best_seconds: float | None,
    tried: Sequence[Strategy],
) -> Judge:
    """tried: measured before, or chosen already."""
    if not tried:
        return Judge(domain, simulator, acquisition, best_seconds)
    population = encode(list(tried), domain)
    known = set(digests_of(domain, population))
    return Judge(domain, simulator, acquisition, best_seconds, population, known)


def gain_of(listed: Shortlist, judge: Judge) -> float:
    """What the best of a shortlist is expected to gain over the fastest measured, as a share of its
    seconds; infinite where the simulator states no doubt, or nothing is measured."""
    if judge.best_seconds is None or not isinstance(judge.simulator, Learner) or not len(listed):
        return np.inf
    gains = expected_improvement(listed.seconds, listed.std, judge.best_seconds)
    return float(gains.max()) / judge.best_seconds


def picked(
    judge: Judge,
    listed: Shortlist,
    settings: Settings,
    number: int,
    count: int,
    origin: Origin,
) -> list[Candidate]:
    """`count` of a shortlist by equation 11: promising, and unlike each other and all that were
    tried."""
    if not count:
        return []
    shares, tried = shares_beside(judge, listed)
    picks = select(listed.promise, shares, min(count, len(listed)), settings.alpha, tried)
    return [
        Candidate(
            decode(listed.population, int(pick), judge.domain),
            float(listed.seconds[pick]),
            judge.simulator.name,
            origin,
            settings.seed + number,
            int(listed.index[pick]),
        )
        for pick in picks
    ]


def shares_beside(
    judge: Judge, listed: Shortlist
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`message_shares` of a shortlist and of what was tried, by the same features."""
    if judge.tried is None:
        shares = message_shares(judge.domain, listed.population)
        return shares, shares[:0]
    both = concatenate([listed.population, judge.tried])
    shares = message_shares(judge.domain, both)
    return shares[: len(listed)], shares[len(listed) :]
