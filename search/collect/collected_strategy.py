"""A strategy that a collection measures, and why it is there."""

from dataclasses import dataclass

from autosync.strategy import Strategy

PICKED_BY_TIMELINE = "pick/timeline"
PICKED_BY_TRANSFERRED = "pick/transferred"
PICKED_AT_RANDOM = "pick/random"
PICK_ORIGINS = (PICKED_BY_TIMELINE, PICKED_BY_TRANSFERRED, PICKED_AT_RANDOM)


@dataclass(frozen=True, slots=True)
class CollectedStrategy:
    """origin: `sampled`, the name of the builder that made it, or one of `PICK_ORIGINS`.

    round, predicted_seconds: of a pick, the round that chose it, from 1, and what its chooser
    predicted; at random, what the timeline predicts.
    """

    origin: str
    strategy: Strategy
    round: int | None = None
    predicted_seconds: float | None = None
