"""Which strategies to try next: hand-designed ones first, then the best of many samples."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population, decode, encode
from autosync.search.designs.design_table import hand_designed
from autosync.search.loop.message_equality import distinct_rows, message_shares
from autosync.search.loop.outcome import DDP, TuningEvent
from autosync.search.loop.ranking import materialize, rank
from autosync.search.loop.selection import select
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Candidate, Proposal, Store
from autosync.search.space import Space
from autosync.simulator.memory_check import fitting_rows
from autosync.simulator.message_digests import digests_of_strategies
from autosync.simulator.simulator_contract import Learner, Simulator
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator

OnEvent = Callable[[TuningEvent], None]

ROUND_TRIALS = 8
"""Trials between two refits."""
SHORTLIST_SIZE = 256
"""Proposals that survive the simulator's ranking, before the selection."""
COARSE_SIZE = 2048
"""Proposals that the timeline leaves for a simulator that learns, which costs far more each."""
UNFAVOURED = 512
"""Of these, ones that the timeline does not favour, so that what it undervalues can be chosen."""
RANKED_SIZE = 16_384
"""The timeline's places that those come from: beyond, it would have to err several times over."""
OPTIMISM = 1.0
"""Standard deviations by which a proposal may be faster than predicted when it is judged: what is
fast, and what could be and is unlike all trials, is tried."""


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The most promising proposals, the best first.

    index i64[n]: of the sampled ones. seconds f64[n]: predicted. promise f64[n]: what they are
    judged by, seconds less what the simulator is unsure of.
    """

    population: Population
    index: NDArray[np.int64]
    seconds: NDArray[np.float64]
    promise: NDArray[np.float64]

    def take(self, rows: NDArray[np.int64]) -> "Shortlist":
        columns = (self.index[rows], self.seconds[rows], self.promise[rows])
        return Shortlist(self.population.take(rows), *columns)


def propose(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    store: Store,
    settings: Settings,
    left: int,
    on_event: OnEvent,
) -> list[Proposal]:
    """The next round: hand-designed strategies first (DDP before all), then sampled ones."""
    earlier = store.proposals()
    number = 1 + max((proposal.round for proposal in earlier), default=-1)
    known = digests_of_strategies(domain, [each.candidate.strategy for each in earlier])
    chosen: list[Candidate] = []
    if number == 0:
        room = min(left, max(1, settings.budget // 2))
        chosen = known_designs(domain, space, simulator)[:room]
        known |= digests_of_strategies(domain, [each.strategy for each in chosen])
    room = min(left, max(ROUND_TRIALS, len(chosen))) - len(chosen)
    if room > 0:
        chosen += sampled(domain, space, simulator, settings, number, room, known, on_event)
    return [
        Proposal(f"search/{number}/{candidate.strategy.id}", "search", number, candidate)
        for candidate in chosen
    ]


def known_designs(domain: Domain, space: Space, simulator: Simulator) -> list[Candidate]:
    """DDP, then the other hand-designed strategies that fit the devices' memory, the most promising
    first, of equal messages the first one."""
    named = hand_designed(domain, space)
    scores = simulator.predict(domain, encode([strategy for _, strategy in named], domain))
    candidates = [
        Candidate(replace(strategy, name=name), float(score), simulator.name, name)
        for (name, strategy), score in zip(named, scores, strict=True)
    ]
    candidates.sort(key=lambda c: (c.origin != DDP, c.predicted_seconds, c.origin))
    population = encode([each.strategy for each in candidates], domain)
    fitting = {*fitting_rows(domain, population).tolist(), 0}  # DDP is measured in any case
    rows = distinct_rows(domain, population)
    return [candidates[row] for row in rows if int(row) in fitting]


def sampled(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    settings: Settings,
    number: int,
    count: int,
    known: Collection[bytes],
    on_event: OnEvent,
    optimism: float = OPTIMISM,
) -> list[Candidate]:
    """`count` of the round's proposals: promising, unlike each other, and in their messages unlike
    all that are known (digests)."""
    total = settings.proposals

    def progress(done: int) -> None:
        on_event(TuningEvent("ranking", f"ranking proposals, round {number + 1}", done, total))

    seed = settings.seed + number
    best = shortlist(domain, space, simulator, total, seed, progress, optimism, known)
    shares = message_shares(domain, best.population)
    picks = select(best.promise, shares, min(count, len(best.index)), settings.alpha)
    return [
        Candidate(
            decode(best.population, int(pick), domain),
            float(best.seconds[pick]),
            simulator.name,
            "sampled",
            seed,
            int(best.index[pick]),
        )
        for pick in picks
    ]


def shortlist(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    total: int,
    seed: int,
    progress: Callable[[int], None],
    optimism: float = OPTIMISM,
    known: Collection[bytes] = (),
) -> Shortlist:
    """The most promising `SHORTLIST_SIZE` of `total` proposals that fit the devices' memory, no two
    of equal messages.

    known: digests of messages that are not proposed again.
    A simulator that learns judges only what the timeline leaves (`coarse_places`), each proposal
    `optimism` standard deviations below its prediction; any other ranks everything as it predicts.
    """
    learns = isinstance(simulator, Learner)
    ranking, kept = (TimelineSimulator(), RANKED_SIZE) if learns else (simulator, COARSE_SIZE)
    ranked = rank(domain, space, ranking, total, seed, kept, on_progress=progress)
    coarse = ranked.take(coarse_places(len(ranked.index), seed))
    population = materialize(coarse, domain, space)
    listed = Shortlist(population, coarse.index, coarse.seconds, coarse.seconds)
    listed = listed.take(distinct_rows(domain, population, known))
    listed = listed.take(fitting_rows(domain, listed.population))
    if isinstance(simulator, Learner):
        seconds, std = simulator.predict_with_std(domain, listed.population)
        listed = replace(listed, seconds=seconds, promise=seconds * np.exp(-optimism * std))
    best = np.argsort(listed.promise, kind="stable")[:SHORTLIST_SIZE]
    return listed.take(best)


def coarse_places(ranked: int, seed: int) -> NDArray[np.int64]:
    """Which of `ranked` places, the timeline's best first, a simulator that learns judges: the
    first ones, and UNFAVOURED at random from as many strata of the rest. A stratum is wider the
    further back it lies, all by one factor."""
    if ranked <= COARSE_SIZE:
        return np.arange(ranked)
    favoured = COARSE_SIZE - UNFAVOURED
    edges = np.geomspace(favoured, ranked, UNFAVOURED + 1).round().astype(np.int64)
    rng = np.random.default_rng(seed)
    drawn = edges[:-1] + (rng.random(UNFAVOURED) * np.diff(edges)).astype(np.int64)
    return np.concatenate((np.arange(favoured), np.unique(drawn)))
