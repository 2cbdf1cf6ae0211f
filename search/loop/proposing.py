"""Which strategies to try next: hand-designed ones first, then the most promising of all sources.

Each source (designs that were not tried yet, random draws, local searches from the fastest
measured, their neighbours, a genetic search) has its share of a round's trials (`round_shares`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population, concatenate, decode, encode
from autosync.search.loop.acquisition import expected_improvement
from autosync.search.loop.earlier_trials import EarlierTrials, canaries, designs_again
from autosync.search.loop.earned_designs import earned_designs, known_designs
from autosync.search.loop.fusion_tuning import tuned_fusion
from autosync.search.loop.message_equality import message_shares
from autosync.search.loop.outcome import MeasuredRow, TuningEvent, rank_measured
from autosync.search.loop.placed_designs import placed_again, refused_modules, with_placed
from autosync.search.loop.refined_designs import with_refined
from autosync.search.loop.round_shares import (
    INSURED_SHARE,
    earned_share,
    passed_on,
    quota,
    round_shares,
)
from autosync.search.loop.selection import select
from autosync.search.loop.settings import Acquisition, Settings
from autosync.search.loop.shortlists import (
    Judge,
    Shortlist,
    drawn_shortlist,
    genetic_shortlist,
    neighbour_shortlist,
    parent_rows,
    refined_shortlist,
)
from autosync.search.loop.swapped_retries import retried_with_swap
from autosync.search.loop.tuning_store import Candidate, Origin, Proposal, Store
from autosync.search.space import Space
from autosync.simulator.fitting.recalibration import recalibrated
from autosync.simulator.message_digests import digests_of
from autosync.simulator.simulator_contract import Learner, Simulator
from autosync.strategy import Strategy

OnEvent = Callable[[TuningEvent], None]

ROUND_TRIALS = 4
"""Trials between two refits."""


def propose(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    store: Store,
    settings: Settings,
    left: int,
    on_event: OnEvent,
    earlier: EarlierTrials | None = None,
) -> list[Proposal]:
    """The next round. The first one is of hand-designed strategies, DDP before all. Later ones are
    what ran out of memory once more with swapping, one fusion buffer tuned by the trials, designs
    that could still be the fastest, and what each search finds. None where the search has nothing
    left to gain (`settings.least_gain`): then only what is due once more, if anything.

    earlier: of another tuning. Its canaries are the first round, and its other strategies stand
    among the hand-designed ones of later rounds."""
    stored = store.proposals()
    number = 1 + max((proposal.round for proposal in stored), default=-1)
    if earlier is not None and number == 0:
        return proposals_of(canaries(domain, simulator, earlier, left), number)
    tried = [each.candidate.strategy for each in stored]
    fastest = [row for row in rank_measured(stored, store.trials()) if row.step_seconds]
    best_seconds = fastest[0].step_seconds if fastest else None
    room = min(left, ROUND_TRIALS)
    later = sum(each.round > 0 for each in stored)
    due: list[Candidate] = []  # whatever else promises nothing
    if number == (0 if earlier is None else 1):
        chosen = _first_designs(domain, space, simulator, tried, settings, left, earlier)
        room = min(left, max(ROUND_TRIALS, len(chosen)))
    else:
        due = retried_with_swap(domain, space, simulator, store)[:room]
        chosen = due + tuned_fusion(domain, space, simulator, store)[: room - len(due)]
        most = min(quota(settings.design_share, later, room), room - len(chosen))
        known = [*(each.candidate for each in stored), *chosen]
        chosen += earned_designs(domain, space, simulator, known, best_seconds, most, earlier)
        chosen += _placed(domain, space, simulator, store, settings, fastest, chosen, room)
    gains = [1 - c.predicted_seconds / best_seconds for c in chosen if best_seconds is not None]
    searched = Searched.after(domain, simulator, fastest, settings)
    shares = round_shares(settings, room - len(chosen), len(searched.parents), later)
    insured = quota(INSURED_SHARE, later, room)
    while shares:
        (origin, count), *others = shares
        if not count:
            shares = others
            continue
        judge = judge_of(
            domain,
            simulator,
            settings.acquisition,
            best_seconds,
            [*tried, *(each.strategy for each in chosen)],
        )
        listed = listed_by(origin, judge, space, settings, number, searched, on_event)
        gains.append(gain_of(listed, judge))
        earned = earned_share(listed, judge, count, insured) if others else count
        chosen += picked(judge, listed, settings, number, earned, origin)
        shares = passed_on(others, count - earned)
    if number > 0 and max(gains, default=0.0) < settings.least_gain:
        chosen = due
    return proposals_of(chosen, number)


def _first_designs(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    tried: Sequence[Strategy],
    settings: Settings,
    left: int,
    earlier: EarlierTrials | None,
) -> list[Candidate]:
    """The most promising designs, refined ones among them, as many as the settings say."""
    room = min(left, settings.first_designs, max(1, settings.budget // 2))
    designs = known_designs(domain, space, simulator)
    if earlier is not None:
        designs = designs_again(domain, simulator, earlier, designs, tried)
    designs = with_refined(domain, space, simulator, designs, settings.seed, tried)
    return with_placed(domain, space, simulator, designs, tried, settings, room)


def _placed(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    store: Store,
    settings: Settings,
    fastest: Sequence[MeasuredRow],
    chosen: Sequence[Candidate],
    room: int,
) -> list[Candidate]:
    """Placements of a later round, beside what is chosen already."""
    if not fastest:
        return []
    return placed_again(
        domain,
        space,
        simulator,
        [row.candidate.strategy for row in fastest],
        [each.strategy for each in (*(p.candidate for p in store.proposals()), *chosen)],
        settings,
        room - len(chosen),
        refused_modules(store),
    )


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


def proposals_of(chosen: Sequence[Candidate], number: int) -> list[Proposal]:
    """Round `number` of a search."""
    return [
        Proposal(f"search/{number}/{candidate.strategy.id}", "search", number, candidate)
        for candidate in chosen
    ]


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


def listed_by(
    origin: Origin,
    judge: Judge,
    space: Space,
    settings: Settings,
    number: int,
    searched: Searched,
    on_event: OnEvent,
) -> Shortlist:
    """The source's shortlist of round `number`."""

    def progress(done: int) -> None:
        text = f"ranking proposals, round {number + 1}"
        on_event(TuningEvent("ranking", text, done, settings.proposals))

    seed = settings.seed + number
    if origin == "sampled":
        return drawn_shortlist(judge, space, settings.proposals, seed, progress)
    if origin == "refined":
        parents, seconds, calibrated = searched.parents, searched.step_seconds, searched.calibrated
        return refined_shortlist(
            judge, space, parents, seconds, calibrated, settings.proposals, seed
        )
    if origin == "neighbour":
        return neighbour_shortlist(judge, space, searched.parents, settings.proposals, seed)
    return genetic_shortlist(judge, space, searched.parents, settings.proposals, seed)


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
