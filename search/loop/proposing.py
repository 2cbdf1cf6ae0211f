"""Which strategies to try next: hand-designed ones first, then the most promising of other sources.

Each source (random draws, neighbours of the fastest measured, a genetic search) has its share of a
round's trials, so that one whose predictions are too good leaves the others theirs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population, concatenate, decode, encode
from autosync.search.designs.design_table import hand_designed
from autosync.search.designs.swapped_designs import swapped_where_needed
from autosync.search.designs.torch_engines import torch_designs
from autosync.search.loop.acquisition import expected_improvement
from autosync.search.loop.earlier_trials import EarlierTrials, canaries, designs_again
from autosync.search.loop.fusion_tuning import tuned_fusion
from autosync.search.loop.message_equality import distinct_rows, message_shares
from autosync.search.loop.outcome import DDP, TuningEvent, rank_measured
from autosync.search.loop.placed_designs import placed_again, refused_modules, with_placed
from autosync.search.loop.refined_designs import with_refined
from autosync.search.loop.selection import select
from autosync.search.loop.settings import Acquisition, Settings
from autosync.search.loop.shortlists import (
    Judge,
    Shortlist,
    drawn_shortlist,
    genetic_shortlist,
    neighbour_shortlist,
    parents_among,
)
from autosync.search.loop.swapped_retries import retried_with_swap
from autosync.search.loop.tuning_store import Candidate, Origin, Proposal, Store
from autosync.search.space import Space
from autosync.simulator.memory_check import fitting_rows
from autosync.simulator.message_digests import digests_of
from autosync.simulator.simulator_contract import Learner, Simulator
from autosync.strategy import Strategy

OnEvent = Callable[[TuningEvent], None]

ROUND_TRIALS = 8
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
    """The next round: hand-designed strategies first (DDP before all), then those that ran out of
    memory once more with swapping, one fusion buffer tuned by the trials, and those of each source.
    None where the search has nothing left to gain (`settings.least_gain`): then only what is due
    once more, if anything.

    earlier: of another tuning. Its canaries are the first round, and its other strategies stand
    among the hand-designed ones of the second."""
    stored = store.proposals()
    number = 1 + max((proposal.round for proposal in stored), default=-1)
    tried = [each.candidate.strategy for each in stored]
    chosen: list[Candidate] = []
    due: list[Candidate] = []  # whatever else promises nothing
    if earlier is not None and number == 0:
        return proposals_of(canaries(domain, simulator, earlier, left), number)
    designing = number == (0 if earlier is None else 1)
    if designing:
        room = min(left, max(1, settings.budget // 2))
        designs = known_designs(domain, space, simulator)
        if earlier is not None:
            designs = designs_again(domain, simulator, earlier, designs, tried)
        chosen = with_refined(domain, space, simulator, designs, settings.seed)
        chosen = with_placed(domain, space, simulator, chosen, tried, settings, room)
    else:
        due = retried_with_swap(domain, space, simulator, store)[: min(left, ROUND_TRIALS)]
        chosen = due + tuned_fusion(domain, space, simulator, store)[: left - len(due)]
    room = min(left, max(ROUND_TRIALS, len(chosen))) - len(chosen)
    fastest = [row for row in rank_measured(stored, store.trials()) if row.step_seconds]
    measured = encode([row.candidate.strategy for row in fastest], domain)
    parents = parents_among(domain, measured)
    gains: list[float] = []
    best_seconds = fastest[0].step_seconds if fastest else None
    if best_seconds is not None and not designing:
        placed = placed_again(
            domain,
            space,
            simulator,
            [row.candidate.strategy for row in fastest],
            [*tried, *(each.strategy for each in chosen)],
            settings,
            room,
            refused_modules(store),
        )
        chosen, room = chosen + placed, room - len(placed)
        gains += [1 - each.predicted_seconds / best_seconds for each in placed]
    for origin, count in round_shares(settings, room, len(parents)):
        judge = judge_of(
            domain,
            simulator,
            settings.acquisition,
            best_seconds,
            [*tried, *(each.strategy for each in chosen)],
        )
        listed = listed_by(origin, judge, space, settings, number, parents, on_event)
        gains.append(gain_of(listed, judge))
        chosen += picked(judge, listed, settings, number, count, origin)
    if number > 0 and max(gains, default=0.0) < settings.least_gain:
        chosen = due
    return proposals_of(chosen, number)


def proposals_of(chosen: Sequence[Candidate], number: int) -> list[Proposal]:
    """Round `number` of a search."""
    return [
        Proposal(f"search/{number}/{candidate.strategy.id}", "search", number, candidate)
        for candidate in chosen
    ]


def round_shares(settings: Settings, room: int, parents: int) -> list[tuple[Origin, int]]:
    """Trials of a round by their source, `room` in all; random draws have what others leave, and
    neighbours need a parent."""
    genetic = round(room * settings.genetic_share)
    neighbours = min(round(room * settings.neighbour_share), room - genetic) if parents else 0
    counts: list[tuple[Origin, int]] = [
        ("sampled", room - genetic - neighbours),
        ("neighbour", neighbours),
        ("genetic", genetic),
    ]
    return [(origin, count) for origin, count in counts if count > 0]


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
    parents: Population,
    on_event: OnEvent,
) -> Shortlist:
    """The source's shortlist of round `number`. parents: as `parents_among` finds them, the fastest
    first."""

    def progress(done: int) -> None:
        text = f"ranking proposals, round {number + 1}"
        on_event(TuningEvent("ranking", text, done, settings.proposals))

    seed = settings.seed + number
    if origin == "sampled":
        return drawn_shortlist(judge, space, settings.proposals, seed, progress)
    if origin == "neighbour":
        return neighbour_shortlist(judge, space, parents, seed)
    return genetic_shortlist(judge, space, parents, settings.proposals, seed)


def gain_of(listed: Shortlist, judge: Judge) -> float:
    """What the best of a shortlist is expected to gain over the fastest measured, as a share of its
    seconds; infinite where the simulator states no doubt, or nothing is measured."""
    if judge.best_seconds is None or not isinstance(judge.simulator, Learner) or not len(listed):
        return np.inf
    gains = expected_improvement(listed.seconds, listed.std, judge.best_seconds)
    return float(gains.max()) / judge.best_seconds


def known_designs(domain: Domain, space: Space, simulator: Simulator) -> list[Candidate]:
    """DDP, then the other hand-designed strategies that fit the devices' memory, some of them with
    something swapped, the most promising first, of equal messages the first one."""
    named = [*hand_designed(domain, space), *torch_designs(domain, space)]
    named += swapped_where_needed(domain, named, space)
    population = encode([strategy for _, strategy in named], domain)
    scores = simulator.predict(domain, population)
    candidates = [
        Candidate(replace(strategy, name=name), float(score), simulator.name, name)
        for (name, strategy), score in zip(named, scores, strict=True)
    ]

    def place(row: int) -> tuple[bool, float, str]:
        known = candidates[row]
        return known.origin != DDP, known.predicted_seconds, known.origin

    order = sorted(range(len(candidates)), key=place)
    population = population.take(order)
    fitting = {*fitting_rows(domain, population).tolist(), 0}  # DDP is measured in any case
    rows = distinct_rows(domain, population)
    return [candidates[order[row]] for row in rows if int(row) in fitting]


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
