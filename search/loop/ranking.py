"""Rank many proposals with a simulator, keeping only the best."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import in_order
from autosync.domain import Domain
from autosync.population import Population
from autosync.search.sampler.sampling import sample, sample_at
from autosync.search.space import Space
from autosync.simulator.simulator_contract import Simulator

CHUNK = 512
"""Proposals sampled, compiled and predicted at a time: four times as many need half a gigabyte more
for BERT-large, and no less time."""


@dataclass(frozen=True, slots=True)
class RankedProposals:
    """The best proposals, best first.

    seed, index i64[n]: what identifies a proposal. seconds f64[n]: what the simulator
    predicts. proposals: how many were looked at.
    """

    seed: int
    index: NDArray[np.int64]
    seconds: NDArray[np.float64]
    simulator: str
    proposals: int

    def take(self, places: NDArray[np.int64]) -> "RankedProposals":
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

    def best() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        order = np.lexsort((index, seconds))[:keep]
        return index[order], seconds[order]

    def predict(start: int) -> NDArray[np.float64]:
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
    return RankedProposals(seed, *best(), simulator.name, proposals)


def materialize(ranked: RankedProposals, domain: Domain, space: Space) -> Population:
    """The ranked proposals drawn again, best first."""
    return sample_at(domain, space, ranked.index.astype(np.uint64), ranked.seed)
