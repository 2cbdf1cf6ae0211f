"""How a job's throughput grows with its nodes: what each number of them brings, and where it stops
being worth it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

KNEE_SHARE = 0.5
"""Beyond the knee a further node brings less than this share of what one of the fewest brings."""


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """One number of nodes.

    step_seconds, low_seconds, high_seconds: of an iteration; nine of ten are expected between the
        last two. samples_per_second: over all ranks. efficiency: of what the ranks would reach
        without waiting for messages. binding: what shortens the iteration most where it is faster.
    usd_per_hour: of all nodes; None where it is not known.
    """

    nodes: int
    ranks: int
    step_seconds: float
    low_seconds: float
    high_seconds: float
    samples_per_second: float
    efficiency: float
    binding: str
    usd_per_hour: float | None = None

    @property
    def samples_per_dollar(self) -> float | None:
        if not self.usd_per_hour:
            return None
        return self.samples_per_second * 3600.0 / self.usd_per_hour


def knee_of(points: Sequence[ScalePoint]) -> int | None:
    """The most nodes up to which each further one brings at least KNEE_SHARE of what one of the
    fewest brings; None where all do. points: ascending in nodes."""
    for before, after in pairwise(points):
        gained = after.samples_per_second - before.samples_per_second
        share = gained / (after.nodes - before.nodes)
        if share < KNEE_SHARE * points[0].samples_per_second / points[0].nodes:
            return before.nodes
    return None
