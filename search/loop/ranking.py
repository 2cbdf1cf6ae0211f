"""Ranks proposals: the best of many by a simulator, what a proposal promises, and which to try."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import in_order
from autosync.domain import Domain
from autosync.population import Population, concatenate, decode, encode
from autosync.search.loop.selection import distinct_rows, message_shares, select
from autosync.search.loop.settings import Acquisition, Settings
from autosync.search.loop.tuning_store import Candidate, Origin
from autosync.search.sampler.sampling import sample, sample_at
from autosync.search.space import Space
from autosync.simulator.memory.memory_check import fitting_rows
from autosync.simulator.message_digests import digests_of
from autosync.simulator.simulator_contract import Learner, Simulator
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

CHUNK = 512
"""Proposals sampled, compiled and predicted at a time: four times as many need half a gigabyte more
for BERT-large, and no less time."""
SHORTLIST_SIZE = 256
"""Proposals that survive the simulator's ranking, before the selection."""
OPTIMISM = 1.0
"""Standard deviations of the lower bound below the prediction."""
LEAST_STD = 1e-9
"""Log seconds; keeps a certain prediction apart from a division by zero."""


@dataclass(frozen=True, slots=True)
class RankedProposals:
    """The best proposals, best first.

    seed, index i64[n]: what identifies a proposal. seconds f64[n]: predicted.
    """

    seed: int
    index: I64
    seconds: F64

    def take(self, places: I64) -> "RankedProposals":
        """Those at these places, in their order."""
        return replace(self, index=self.index[places], seconds=self.seconds[places])


def rank(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    proposals: int,
    seed: int,
    keep: int,
    threads: int = 2,
    on_progress: Callable[[int], None] | None = None,
) -> RankedProposals:
    """The best `keep` of proposals 0 to `proposals`; memory does not grow with their number.

    on_progress: called with the number of proposals done. A strategy predicted as infinite or
    NaN cannot run and is not kept. The answer does not depend on `threads`. Raises Cancelled
    between chunks.
    """
    index, seconds = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64)

    def best() -> tuple[I64, F64]:
        order = np.lexsort((index, seconds))[:keep]
        return index[order], seconds[order]

    def predict(start: int) -> F64:
        population = sample(domain, space, start, min(CHUNK, proposals - start), seed)
        return simulator.predict(domain, population)

    starts = range(0, proposals, CHUNK)
    for start, scores in zip(starts, in_order(threads, predict, starts), strict=True):
        sound = np.flatnonzero(np.isfinite(scores))
        index = np.concatenate((index, start + sound))
        seconds = np.concatenate((seconds, scores[sound]))
        if len(index) > 2 * keep:
            index, seconds = best()
        if on_progress:
            on_progress(min(start + CHUNK, proposals))
    return RankedProposals(seed, *best())


def materialize(ranked: RankedProposals, domain: Domain, space: Space) -> Population:
    """The ranked proposals drawn again, best first."""
    return sample_at(domain, space, ranked.index.astype(np.uint64), ranked.seed)


def promise_of(seconds: F64, std: F64, acquisition: Acquisition, best_seconds: float | None) -> F64:
    """What proposals are ranked by, `(n,)` seconds, lower is better.

    A simulator that learns states the standard deviation of the logarithm of its seconds, which
    grows with the distance from all trials. A lower bound tries what could be fast; the expected
    improvement (Jones, Schonlau and Welch 1998, equation 15) also weighs by how much.

    seconds, std `(n,)`: predicted, and the standard deviation of their logarithm. best_seconds: the
    fastest measured; before the first trial, the fastest predicted is used.
    """
    match acquisition:
        case "prediction":
            return seconds
        case "lower_bound":
            bound: F64 = seconds * np.exp(-OPTIMISM * std)
            return bound
        case "expected_improvement":
            best = best_seconds if best_seconds is not None else float(seconds.min(initial=np.inf))
            return -expected_improvement(seconds, std, best)


def expected_improvement(seconds: F64, std: F64, best_seconds: float) -> F64:
    """By how much each strategy is expected to be faster than the best, `(n,)` seconds, where a
    slower one is no loss: the mean of max(best - T, 0), T log-normal about the prediction."""
    from scipy.special import ndtr  # loads for long; most rankings ask for none

    spread = np.maximum(std, LEAST_STD)
    below = (np.log(best_seconds) - np.log(seconds)) / spread
    mean = seconds * np.exp(0.5 * spread**2)
    gain: F64 = best_seconds * ndtr(below) - mean * ndtr(below - spread)
    return np.maximum(gain, 0.0)


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
class RankingContext:
    """What ranks proposals: a simulator, how its standard deviation counts, and the fastest so far.

    tried: strategies measured before, or chosen already; None where there are none. known: digests
    of their messages, which are not proposed again.
    """

    domain: Domain
    simulator: Simulator
    acquisition: Acquisition = "lower_bound"
    best_seconds: float | None = None
    tried: Population | None = None
    known: Collection[bytes] = ()

    def predict_coarsely(self, population: Population) -> F64:
        return coarse_of(self.simulator).predict(self.domain, population)

    def shortlist(
        self, population: Population, index: I64, coarse_seconds: F64, scale: F64 | None = None
    ) -> Shortlist:
        """The most promising `SHORTLIST_SIZE` that fit the devices' memory, no two of equal
        messages. coarse_seconds: of `coarse_of` the simulator. scale `(strategies,)`: factors for
        the simulator's seconds, where its error nearby is known."""
        rows = distinct_rows(self.domain, population, self.known)
        listed = population.take(rows)
        fitting = fitting_rows(self.domain, listed)
        if len(fitting) < len(rows):
            rows, listed = rows[fitting], listed.take(fitting)
        seconds, std = self.predicted(listed, coarse_seconds[rows])
        if scale is not None:
            seconds = seconds * scale[rows]
        promise = promise_of(seconds, std, self.acquisition, self.best_seconds)
        best = np.argsort(promise, kind="stable")[:SHORTLIST_SIZE]
        return Shortlist(listed, index[rows], seconds, std, promise).take(best)

    def predicted(self, population: Population, coarse_seconds: F64) -> tuple[F64, F64]:
        """Seconds, and the standard deviation of their logarithm: 0 where it is not used, since it
        takes long."""
        if not isinstance(self.simulator, Learner):
            return coarse_seconds, np.zeros(len(population))
        if self.acquisition == "prediction" and self.best_seconds is None:
            return self.simulator.predict(self.domain, population), np.zeros(len(population))
        return self.simulator.predict_with_std(self.domain, population)

    def gain(self, listed: Shortlist) -> float:
        """What the best of a shortlist is expected to gain over the fastest measured, as a share of
        its seconds; infinite where the simulator states no deviation, or nothing is measured."""
        if self.best_seconds is None or not isinstance(self.simulator, Learner) or not len(listed):
            return np.inf
        gains = expected_improvement(listed.seconds, listed.std, self.best_seconds)
        return float(gains.max()) / self.best_seconds

    def pick(
        self, listed: Shortlist, settings: Settings, number: int, count: int, origin: Origin
    ) -> list[Candidate]:
        """`count` of a shortlist in round `number`, by equation 11: promising, and unlike each
        other and all that were tried."""
        if not count:
            return []
        shares, tried = self._shares(listed)
        picks = select(listed.promise, shares, min(count, len(listed)), settings.alpha, tried)
        return [
            Candidate(
                decode(listed.population, int(pick), self.domain),
                float(listed.seconds[pick]),
                self.simulator.name,
                origin,
                settings.seed + number,
                int(listed.index[pick]),
            )
            for pick in picks
        ]

    def _shares(self, listed: Shortlist) -> tuple[F64, F64]:
        """`message_shares` of a shortlist and of what was tried, by the same features."""
        if self.tried is None:
            shares = message_shares(self.domain, listed.population)
            return shares, shares[:0]
        shares = message_shares(self.domain, concatenate([listed.population, self.tried]))
        return shares[: len(listed)], shares[len(listed) :]


def ranking_context(
    domain: Domain,
    simulator: Simulator,
    acquisition: Acquisition,
    best_seconds: float | None,
    tried: Sequence[Strategy],
) -> RankingContext:
    """tried: measured before, or chosen already."""
    if not tried:
        return RankingContext(domain, simulator, acquisition, best_seconds)
    population = encode(list(tried), domain)
    known = set(digests_of(domain, population))
    return RankingContext(domain, simulator, acquisition, best_seconds, population, known)


def coarse_of(simulator: Simulator) -> Simulator:
    """What ranks all proposals: the timeline, if the simulator learns and so costs far more."""
    return TimelineSimulator() if isinstance(simulator, Learner) else simulator
