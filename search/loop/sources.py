"""The sources of a round's proposals: random draws, local searches from the fastest measured
strategies, and neighbours of them; and how a round's trials are divided among them.

Trials are divided, not predictions, so that a source whose predictions are too good leaves the
others their trials. But a share must be earned: few trials go to proposals that cannot be faster
than the fastest measured, by their prediction and one standard deviation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Method, Order
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import Population, concatenate, encode
from autosync.search.designs.known_designs import ddp
from autosync.search.edits.local_search import neighbours_of, searched_from
from autosync.search.edits.sharded_edits import sharded_neighbours
from autosync.search.extension_proposals import is_edited
from autosync.search.loop.outcome import MeasuredRow, OnEvent, TuningEvent
from autosync.search.loop.ranking import (
    OPTIMISM,
    RankedProposals,
    RankingContext,
    Shortlist,
    coarse_of,
    materialize,
    rank,
    ranking_context,
)
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Candidate, Source
from autosync.search.sampler.sampling import most_draws, sample
from autosync.search.sampler.sharded_draws import MOST_DRAWS, sharding_choices
from autosync.search.space import SPACES, Space
from autosync.simulator.fitting.iteration_costs import MODEL_NOISE, recalibrated
from autosync.simulator.memory.memory_check import fitting_rows
from autosync.simulator.simulator_contract import Learner, Simulator
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

COARSE_SIZE = 2048
"""Proposals that the timeline passes to a learned simulator, which costs far more for each."""
UNFAVOURED = 512
"""Of these, ones that the timeline ranks low, so that strategies that it undervalues can win."""
RANKED_SIZE = 16_384
"""The timeline's places that those come from: beyond, it would have to err several times over."""
NEIGHBOURS = 4096
"""Neighbours that are looked at in a round; no more than its proposals."""
NEIGHBOURS_KEPT = 512
"""Of these, those that the timeline passes to a simulator that learns."""
SHARDED_NEIGHBOURS = 512
"""Neighbours of strategies under torch's `fully_shard` in a round: each is played in plain Python,
a few milliseconds."""
REFINED_PARENTS = 4
"""Of the fastest measured strategies, those that a local search begins from."""
REFINEMENTS = 2048
"""Strategies that such a search looks at; all of them at no more than the proposals of a round."""
REFINEMENTS_KEPT = 128
"""Of these, the timeline's best, whose seconds are corrected by their parent's error."""
PARENT_BIAS = 0.5
"""The part, in log seconds, of a simulator's error for a strategy that is assumed for its children.
Reasoned: with few trials the parent's error is what is known of its neighbourhood, but the fastest
measured strategies are so in part by luck and because the simulator errs about them alone."""
MEASURED_PARENTS = 8
"""Of the fastest measured strategies, those that have neighbours."""
INSURED_SHARE = 0.125
"""The part of a round's trials that a source keeps of its share in any case, because a simulator
may err where it knows little."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What searches begin from. parents: measured strategies, the fastest first. step_seconds
    `(parents,)`: measured. calibrated: the domain with costs that the trials have corrected.
    sharded: measured strategies under torch's `fully_shard`, the fastest first, which have
    neighbours of their own kind."""

    parents: Population
    step_seconds: NDArray[np.float64]
    calibrated: Domain
    sharded: Population | None = None

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
        sharded = measured.take(np.flatnonzero((measured.engine > 0) & (measured.extension == 0)))
        return Searched(measured.take(rows), seconds[rows], calibrated, sharded)

    @property
    def shardings(self) -> int:
        return 0 if self.sharded is None else len(self.sharded)


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
        """What each source adds to `known` and to the candidates of the sources before it, and what
        the best of each is expected to gain (`RankingContext.gain`).

        shares: trials of each source, in order. A source that does not earn all of them leaves the
        rest to those after it. insured: trials that each keeps in any case.
        """
        chosen: list[Candidate] = []
        gains: list[float] = []
        while shares:
            (origin, count), *others = shares
            if not count:
                shares = others
                continue
            tried = [*known, *(each.strategy for each in chosen)]
            context = ranking_context(
                self.domain, self.simulator, self.settings.acquisition, self.best_seconds, tried
            )
            listed = self.shortlist(origin, context)
            gains.append(context.gain(listed))
            earned = earned_share(listed, context, count, insured) if others else count
            chosen += context.pick(listed, self.settings, self.number, earned, origin)
            shares = passed_on(others, count - earned)
        return chosen, gains

    def shortlist(self, origin: Source, context: RankingContext) -> Shortlist:
        """The candidates that a source finds most promising."""
        proposals, seed = self.settings.proposals, self.settings.seed + self.number
        match origin:
            case "sampled":
                return drawn_shortlist(context, self.space, proposals, seed, self._progress)
            case "refined":
                return refined_shortlist(context, self.space, self.searched, proposals, seed)
            case "neighbour":
                return neighbour_shortlist(context, self.space, self.searched, proposals, seed)

    def _progress(self, done: int) -> None:
        text = f"ranking proposals, round {self.number + 1}"
        total = most_draws(self.space, self.settings.proposals)
        self.on_event(TuningEvent("ranking", text, done, total))


def round_shares(
    settings: Settings, slots: int, parents: int, before: int = 0, sharded: int = 0
) -> list[tuple[Source, int]]:
    """Trials of a round by source, `slots` in all; random draws get what is left. A source that has
    a share is listed even without a trial, since others may leave it theirs; sources other than
    draws need a parent.

    before: trials of these sources in later rounds so far. A share is of all of them together, so
    that a share of an eighth has a trial in every second round of four. sharded: parents under
    torch's `fully_shard`, which have neighbours alone: without others, these have both shares.
    """
    refined, neighbour = settings.refined_share, settings.neighbour_share
    if not parents:
        refined, neighbour = 0.0, (refined + neighbour if sharded else 0.0)
    asked: tuple[tuple[Source, float], ...] = (("refined", refined), ("neighbour", neighbour))
    left = slots
    counts: dict[Source, int] = {}
    for origin, share in asked:
        if share > 0:
            counts[origin] = min(quota(share, before, slots), left)
            left -= counts[origin]
    counts["sampled"] = left
    order: tuple[Source, ...] = ("sampled", "refined", "neighbour")
    return [(origin, counts[origin]) for origin in order if origin in counts]


def quota(share: float, before: int, slots: int) -> int:
    """How many of the next `slots` trials belong to a share, after `before` trials."""
    had, has = (int(share * trials + 1e-9) for trials in (before, before + slots))
    return has - had


def earned_share(listed: Shortlist, context: RankingContext, count: int, insured: int) -> int:
    """How many of its `count` trials a source earns: one for each proposal that could be faster
    than the fastest measured, one standard deviation below its prediction, and at least `insured`;
    all where nothing was measured."""
    if context.best_seconds is None:
        return count
    std = listed.std if isinstance(context.simulator, Learner) else MODEL_NOISE
    could = int((listed.seconds * np.exp(-OPTIMISM * std) < context.best_seconds).sum())
    return min(count, max(could, insured))


def passed_on(shares: Sequence[tuple[Source, int]], spare: int) -> list[tuple[Source, int]]:
    """The shares with `spare` more trials, divided by their sizes; the first gets the remainder."""
    if not shares:
        return []
    total = sum(count for _, count in shares)
    more = [spare * count // total if total else 0 for _, count in shares]
    more[0] += spare - sum(more)
    return [(origin, count + add) for (origin, count), add in zip(shares, more, strict=True)]


def ranked_draws(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    total: int,
    seed: int,
    progress: Callable[[int], None],
) -> RankedProposals:
    """The best of `total` random proposals, as the coarse simulator predicts."""
    total = most_draws(space, total)
    kept = RANKED_SIZE if isinstance(simulator, Learner) else COARSE_SIZE
    return rank(domain, space, coarse_of(simulator), total, seed, kept, on_progress=progress)


def shortlist_of_draws(
    context: RankingContext, space: Space, ranked: RankedProposals, seed: int
) -> Shortlist:
    """A simulator that learns ranks only some of the timeline's best (`coarse_places`). Where DDP
    does not fit, shardings are drawn as well."""
    coarse = ranked.take(coarse_places(len(ranked.index), seed))
    population = materialize(coarse, context.domain, space)
    if not needs_sharding(context.domain, space):
        return context.shortlist(population, coarse.index, coarse.seconds)
    sharded = sample(context.domain, sharded_part(space), 0, MOST_DRAWS, seed)
    return context.shortlist(
        concatenate([population, sharded]),
        np.concatenate((coarse.index, np.full(MOST_DRAWS, -1))),
        np.concatenate((coarse.seconds, context.predict_coarsely(sharded))),
    )


@lru_cache(maxsize=4)
def needs_sharding(domain: Domain, space: Space) -> bool:
    """Whether the devices' memory does not hold DDP, and the space has shardings beside others."""
    if space.only or space.pins or not space.sharded_parameters:
        return False
    if len(fitting_rows(domain, encode([ddp(domain)], domain))):
        return False
    try:
        sharding_choices(domain, sharded_part(space))
    except InvalidInput:
        return False
    return True


def sharded_part(space: Space) -> Space:
    """The space `fsdp2` with what another one allows of it."""
    return replace(SPACES["fsdp2"], encodings=space.encodings)


def drawn_shortlist(
    context: RankingContext, space: Space, total: int, seed: int, progress: Callable[[int], None]
) -> Shortlist:
    """Of `total` random proposals."""
    ranked = ranked_draws(context.domain, space, context.simulator, total, seed, progress)
    return shortlist_of_draws(context, space, ranked, seed)


def refined_shortlist(
    context: RankingContext, space: Space, searched: Searched, total: int, seed: int
) -> Shortlist:
    """What local searches from the fastest strategies find; there is at least one.

    A local search finds strategies near its parent, whose seconds are known: the simulator's error
    there is assumed nearby (`child_scale`). The harder one searches the timeline, the more of its
    errors one finds, so a simulator that learns ranks what was found.
    """
    calibrated, measured = searched.calibrated, searched.parents
    coarse = TimelineSimulator().predict(calibrated, measured)
    scale = child_scale(searched.step_seconds / context.predicted(measured, coarse)[0])
    found, scales, seconds = [], [], []
    for row in range(min(REFINED_PARENTS, len(measured))):
        near, near_seconds = searched_from(
            calibrated,
            space,
            measured.take([row]),
            partial(TimelineSimulator().predict, calibrated),
            min(REFINEMENTS, total // REFINED_PARENTS),
            seed + row,
            REFINEMENTS_KEPT,
        )
        found.append(near)
        seconds.append(near_seconds)
        scales.append(np.full(len(near), scale[row]))
    population = concatenate(found)
    index = np.full(len(population), -1)
    return context.shortlist(population, index, np.concatenate(seconds), np.concatenate(scales))


def child_scale(off: F64) -> F64:
    """Factors for a simulator's seconds near each measured strategy, `(strategies,)`.

    off: measured over predicted seconds. The median error holds for all; of what one strategy is
    off beyond that, `PARENT_BIAS` is assumed for its children.
    """
    level = np.median(np.log(off))
    factor: F64 = np.exp(level + PARENT_BIAS * (np.log(off) - level))
    return factor


def neighbour_shortlist(
    context: RankingContext, space: Space, searched: Searched, total: int, seed: int
) -> Shortlist:
    """Of neighbours of the fastest strategies, of which there is at least one."""
    parts = []
    if len(measured := fastest_of(searched.parents)):
        parts.append(
            neighbours_of(
                context.domain,
                space,
                measured,
                context.predict_coarsely,
                min(NEIGHBOURS, total),
                seed,
                NEIGHBOURS_KEPT,
            )
        )
    if searched.sharded is not None and len(measured := fastest_of(searched.sharded)):
        within = space if space.only == "fsdp2" else sharded_part(space)
        most = min(SHARDED_NEIGHBOURS, total)
        near = sharded_neighbours(context.domain, within, measured, most)
        parts.append((near, context.predict_coarsely(near)))
    population = concatenate([each for each, _ in parts])
    seconds = np.concatenate([each for _, each in parts])
    return context.shortlist(population, np.full(len(population), -1), seconds)


def fastest_of(measured: Population) -> Population:
    """The first ones, which have neighbours."""
    return measured.take(np.arange(min(MEASURED_PARENTS, len(measured))))


def coarse_places(ranked: int, seed: int) -> I64:
    """Which of `ranked` places, the timeline's best first, a simulator that learns ranks: the first
    ones, and UNFAVOURED random ones from as many strata of the rest, each wider than the one before
    by the same factor."""
    if ranked <= COARSE_SIZE:
        return np.arange(ranked)
    favoured = COARSE_SIZE - UNFAVOURED
    edges = np.geomspace(favoured, ranked, UNFAVOURED + 1).round().astype(np.int64)
    rng = np.random.default_rng(seed)
    drawn = edges[:-1] + (rng.random(UNFAVOURED) * np.diff(edges)).astype(np.int64)
    return np.concatenate((np.arange(favoured), np.unique(drawn)))


def parent_rows(domain: Domain, measured: Population) -> I64:
    """Those that others can be made of: not what torch itself runs, no owner beside the
    training ranks, and no extensions of which no others are made (`Proposer.is_edited`)."""
    owned = (measured.method == Method.PARAMETER_SERVER) & (measured.server >= domain.world_size)
    beside = np.add.reduceat(owned, measured.first[:-1]) if len(measured) else np.zeros(0)
    edited = np.array([is_edited(entries) for entries in measured.extensions], dtype=np.bool_)
    own = (measured.order != Order.DDP) & (measured.engine == 0) & edited[measured.extension]
    return np.flatnonzero(own & (beside == 0))
