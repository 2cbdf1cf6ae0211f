"""The most promising proposals of a round, from each source: random draws, local searches from
measured strategies, neighbours of them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Method, Order
from autosync.domain import Domain
from autosync.population import Population, concatenate
from autosync.search.edits.local_search import neighbours_of, searched_from
from autosync.search.extension_proposals import is_edited
from autosync.search.loop.acquisition import promise_of
from autosync.search.loop.message_equality import distinct_rows
from autosync.search.loop.ranking import RankedProposals, materialize, rank
from autosync.search.loop.settings import Acquisition
from autosync.search.space import Space
from autosync.simulator.memory.memory_check import fitting_rows
from autosync.simulator.simulator_contract import Learner, Simulator
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

SHORTLIST_SIZE = 256
"""Proposals that survive the simulator's ranking, before the selection."""
COARSE_SIZE = 2048
"""Proposals that the timeline leaves for a simulator that learns, which costs far more each."""
UNFAVOURED = 512
"""Of these, ones that the timeline does not favour, so that what it undervalues can be chosen."""
RANKED_SIZE = 16_384
"""The timeline's places that those come from: beyond, it would have to err several times over."""
NEIGHBOURS = 4096
"""Neighbours that are looked at in a round; no more than its proposals."""
NEIGHBOURS_KEPT = 512
"""Of these, those that the timeline leaves for a simulator that learns."""
REFINED_PARENTS = 4
"""Of the fastest measured strategies, those that a local search begins from."""
REFINEMENTS = 2048
"""Strategies that such a search looks at; all of them at no more than the proposals of a round."""
REFINEMENTS_KEPT = 128
"""Of these, the timeline's best, which are judged by how they compare with their parent."""
INHERITED = 0.5
"""The share, in log seconds, of what a simulator is off for a strategy that is taken to hold for
what is made of it. Reasoned: with few trials that is what is known of its neighbourhood, but the
fastest of those measured are so in part because the simulator errs about them alone, and by luck.
With all of it refinements measured slower than predicted in most of the contest's domains."""
MEASURED_PARENTS = 8
"""Of the fastest measured strategies, those that have neighbours."""


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The most promising proposals, the best first.

    index i64[n]: of sampled ones, else -1. seconds, std f64[n]: predicted, and the standard
    deviation of their logarithm (0: nothing is stated). promise f64[n]: what they are ranked by.
    """

    population: Population
    index: I64
    seconds: F64
    std: F64
    promise: F64

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: I64) -> "Shortlist":
        """Those of these rows, in their order."""
        return Shortlist(
            self.population.take(rows),
            self.index[rows],
            self.seconds[rows],
            self.std[rows],
            self.promise[rows],
        )


@dataclass(frozen=True, slots=True)
class Judge:
    """What ranks proposals: a simulator, how its doubt counts, and the fastest measured so far.

    tried: strategies measured before, or chosen already; none where there are none. known: digests
    of their messages, which are not proposed again.
    """

    domain: Domain
    simulator: Simulator
    acquisition: Acquisition = "lower_bound"
    best_seconds: float | None = None
    tried: Population | None = None
    known: Collection[bytes] = ()

    @property
    def coarse(self) -> Simulator:
        return coarse_of(self.simulator)

    def predict_coarsely(self, population: Population) -> F64:
        return self.coarse.predict(self.domain, population)

    def best_of(
        self, population: Population, index: I64, coarse_seconds: F64, scale: F64 | None = None
    ) -> Shortlist:
        """The most promising `SHORTLIST_SIZE` that fit the devices' memory, no two of equal
        messages. A simulator that learns judges them anew; any other has done so.

        scale `(strategies,)`: of the simulator's seconds, where it is known by how much these are
        off nearby."""
        rows = distinct_rows(self.domain, population, self.known)
        listed = population.take(rows)
        fitting = fitting_rows(self.domain, listed)
        if len(fitting) < len(rows):
            rows, listed = rows[fitting], listed.take(fitting)
        seconds, std = self.judged(listed, coarse_seconds[rows])
        if scale is not None:
            seconds = seconds * scale[rows]
        promise = promise_of(seconds, std, self.acquisition, self.best_seconds)
        best = np.argsort(promise, kind="stable")[:SHORTLIST_SIZE]
        return Shortlist(listed, index[rows], seconds, std, promise).take(best)

    def judged(self, population: Population, coarse_seconds: F64) -> tuple[F64, F64]:
        """Seconds and their doubt, which is 0 where nobody asks for it, since it takes long."""
        if not isinstance(self.simulator, Learner):
            return coarse_seconds, np.zeros(len(population))
        if self.acquisition == "prediction" and self.best_seconds is None:
            return self.simulator.predict(self.domain, population), np.zeros(len(population))
        return self.simulator.predict_with_std(self.domain, population)


def coarse_of(simulator: Simulator) -> Simulator:
    """What looks at everything: the timeline, before a simulator that learns."""
    return TimelineSimulator() if isinstance(simulator, Learner) else simulator


def ranked_draws(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    total: int,
    seed: int,
    progress: Callable[[int], None],
) -> RankedProposals:
    """Of `total` random proposals those that a shortlist for the simulator may be made of."""
    kept = RANKED_SIZE if isinstance(simulator, Learner) else COARSE_SIZE
    return rank(domain, space, coarse_of(simulator), total, seed, kept, on_progress=progress)


def shortlist_of_draws(judge: Judge, space: Space, ranked: RankedProposals, seed: int) -> Shortlist:
    """A simulator that learns judges only what the timeline leaves (`coarse_places`)."""
    coarse = ranked.take(coarse_places(len(ranked.index), seed))
    population = materialize(coarse, judge.domain, space)
    return judge.best_of(population, coarse.index, coarse.seconds)


def drawn_shortlist(
    judge: Judge, space: Space, total: int, seed: int, progress: Callable[[int], None]
) -> Shortlist:
    """Of `total` random proposals."""
    ranked = ranked_draws(judge.domain, space, judge.simulator, total, seed, progress)
    return shortlist_of_draws(judge, space, ranked, seed)


def refined_shortlist(
    judge: Judge,
    space: Space,
    measured: Population,
    step_seconds: F64,
    calibrated: Domain,
    total: int,
    seed: int,
) -> Shortlist:
    """What local searches from the fastest strategies come to. measured, step_seconds
    `(strategies,)`: as `parents_among` returns them, the fastest first, at least one. calibrated:
    the domain with costs that the trials have corrected, which the timeline searches with.

    A search finds what is near its parent, whose seconds are known: what the simulator is off there
    is taken to hold nearby (`inherited`). The harder one searches the timeline the more of its
    errors one finds, so a simulator that learns has the last word.
    """
    coarse = TimelineSimulator().predict(calibrated, measured)
    scale = inherited(step_seconds / judge.judged(measured, coarse)[0])
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
    return judge.best_of(population, index, np.concatenate(seconds), np.concatenate(scales))


def inherited(off: F64) -> F64:
    """By what factor a simulator's seconds are taken to be off near each measured strategy,
    `(strategies,)`. off: measured over predicted. What most are off holds for all; of what one is
    off beyond that, `INHERITED` is passed on."""
    level = np.median(np.log(off))
    factor: F64 = np.exp(level + INHERITED * (np.log(off) - level))
    return factor


def neighbour_shortlist(
    judge: Judge, space: Space, measured: Population, total: int, seed: int
) -> Shortlist:
    """Of neighbours of the fastest strategies. measured: as `parents_among` returns them, at least
    one."""
    fastest = measured.take(np.arange(min(MEASURED_PARENTS, len(measured))))
    population, seconds = neighbours_of(
        judge.domain,
        space,
        fastest,
        judge.predict_coarsely,
        min(NEIGHBOURS, total),
        seed,
        NEIGHBOURS_KEPT,
    )
    return judge.best_of(population, np.full(len(population), -1), seconds)


def parents_among(domain: Domain, measured: Population) -> Population:
    """Of these, those that others can be made of."""
    return measured.take(parent_rows(domain, measured))


def parent_rows(domain: Domain, measured: Population) -> I64:
    """Those that others can be made of: not what torch itself runs, no owner beside the
    training ranks, and no extensions of which no others are made (`Proposer.is_edited`)."""
    owned = (measured.method == Method.PARAMETER_SERVER) & (measured.server >= domain.world_size)
    beside = np.add.reduceat(owned, measured.first[:-1]) if len(measured) else np.zeros(0)
    edited = np.array([is_edited(entries) for entries in measured.extensions], dtype=np.bool_)
    own = (measured.order != Order.DDP) & (measured.engine == 0) & edited[measured.extension]
    return np.flatnonzero(own & (beside == 0))


def coarse_places(ranked: int, seed: int) -> I64:
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
