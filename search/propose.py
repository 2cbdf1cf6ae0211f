"""Which strategies to try next: hand-designed ones first, then the best of many samples."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population, decode, encode
from search.builders import hand_designed
from search.outcome import DDP, Event, strategy_id
from search.ranking import materialize, rank
from search.select import select
from search.settings import Settings
from search.space import Candidate, Space
from search.store import Proposal, Store
from simulator.base import Learner, Simulator
from simulator.timeline import TimelineSimulator

OnEvent = Callable[[Event], None]

ROUND_TRIALS = 8
"""Trials between two refits."""
KEPT = 256
"""Proposals that survive the simulator's ranking, before the selection."""
SHORTLIST = 2048
"""Proposals that the timeline leaves for a simulator that learns, which costs far more each."""


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
    seen = {strategy_id(proposal) for proposal in earlier}
    chosen: list[Candidate] = []
    if number == 0:
        room = min(left, max(1, settings.budget // 2))
        chosen = known_designs(domain, space, simulator)[:room]
        seen |= {candidate.strategy.id for candidate in chosen}
    room = min(left, max(ROUND_TRIALS, len(chosen))) - len(chosen)
    if room > 0:
        chosen += sampled(domain, space, simulator, settings, number, room, seen, on_event)
    return [
        Proposal(f"search/{number}/{candidate.strategy.id}", "search", number, candidate)
        for candidate in chosen
    ]


def known_designs(domain: Domain, space: Space, simulator: Simulator) -> list[Candidate]:
    """DDP, then the other hand-designed strategies, the most promising first."""
    named = hand_designed(domain, space)
    scores = simulator.predict(domain, encode([strategy for _, strategy in named], domain))
    candidates = [
        Candidate(replace(strategy, name=name), float(score), simulator.name, name)
        for (name, strategy), score in zip(named, scores, strict=True)
    ]
    distinct = {candidate.strategy.id: candidate for candidate in reversed(candidates)}
    return sorted(distinct.values(), key=lambda c: (c.origin != DDP, c.predicted_seconds, c.origin))


def sampled(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    settings: Settings,
    number: int,
    count: int,
    seen: set[str],
    on_event: OnEvent,
) -> list[Candidate]:
    """`count` of the round's proposals: fast by prediction, unlike each other, not yet tried."""
    total = settings.proposals

    def progress(done: int) -> None:
        on_event(Event("ranking", f"ranking proposals, round {number + 1}", done, total))

    seed = settings.seed + number
    kept, index, seconds = shortlist(domain, space, simulator, total, seed, progress)
    fresh = [i for i in range(len(kept)) if decode(kept, i, domain).id not in seen]
    population = kept.take(fresh)
    scores, index = seconds[fresh], index[fresh]
    picks = select(scores, population, min(count, len(fresh)), settings.alpha)
    return [
        Candidate(
            decode(population, int(pick), domain),
            float(scores[pick]),
            simulator.name,
            "sampled",
            seed,
            int(index[pick]),
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
) -> tuple[Population, NDArray[np.int64], NDArray[np.float64]]:
    """The best `KEPT` of `total` proposals, fastest first, with their indices and seconds.

    A simulator that learns judges only what the timeline leaves; any other ranks everything.
    """
    if not isinstance(simulator, Learner):
        ranked = rank(domain, space, simulator, total, seed, KEPT, on_progress=progress)
        return materialize(ranked, domain, space), ranked.index, ranked.seconds
    coarse = rank(domain, space, TimelineSimulator(), total, seed, SHORTLIST, on_progress=progress)
    judged = materialize(coarse, domain, space)
    seconds = simulator.predict(domain, judged)
    best = np.argsort(seconds, kind="stable")[:KEPT]
    return judged.take(best), coarse.index[best], seconds[best]
