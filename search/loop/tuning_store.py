"""Storage of the tuning loop, so that it can stop at any point and continue."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

from pydantic import ConfigDict

from autosync.documents import STRICT
from autosync.errors import InvalidInput
from autosync.strategy import Strategy
from autosync.trials.contract import TrialResult

Phase = Literal["search", "confirm"]
Source = Literal["sampled", "refined", "neighbour"]
"""A search that gets a share of a round's trials."""
SEARCHES: tuple[Source, ...] = get_args(Source)

Origin = Literal[Source, "placed", "placed_by_policy", "nccl_knobs", "compiled_regions"]
"""Where a candidate that a search found comes from: random draws, local searches from
measured strategies, neighbours of them, and what extensions make of others."""
FOUND_BY_SEARCH: tuple[Origin, ...] = get_args(Origin)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy worth a trial.

    origin: an `Origin` (of `sampled` ones `seed` and `index` identify it among all samples) or the
        name of the hand-designed builder that made it.
    """

    strategy: Strategy
    predicted_seconds: float
    simulator: str
    origin: str
    seed: int = 0
    index: int = -1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate that was chosen for trial; stored before anything is launched.

    key: unique in its tuning and stable over restarts: phase, round and strategy.
    """

    key: str
    phase: Phase
    round: int
    candidate: Candidate
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


class Store(Protocol):
    """The memory of one tuning. Each call is one transaction."""

    def proposals(self) -> Sequence[Proposal]:
        """All of them, in the order they were stored."""
        ...

    def trials(self) -> Sequence[TrialResult]:
        """Finished trials, oldest first; a result's `key` is its proposal's."""
        ...

    def propose(self, proposals: Sequence[Proposal]) -> None:
        """Store a round's proposals whole or not at all; a key stored before is left alone."""
        ...

    def record(self, result: TrialResult) -> None:
        """Store a finished trial once; recording its key again is an error."""
        ...


class MemoryStore:
    """A store that lives as long as its process: for searches that need no resuming."""

    def __init__(self) -> None:
        self._proposals: dict[str, Proposal] = {}
        self._trials: dict[str, TrialResult] = {}

    def proposals(self) -> Sequence[Proposal]:
        return tuple(self._proposals.values())

    def trials(self) -> Sequence[TrialResult]:
        return tuple(self._trials.values())

    def propose(self, proposals: Sequence[Proposal]) -> None:
        for proposal in proposals:
            self._proposals.setdefault(proposal.key, proposal)

    def record(self, result: TrialResult) -> None:
        if result.key in self._trials:
            raise InvalidInput(
                f"trial {result.key!r} was recorded before.", thing="trial", value=result.key
            )
        self._trials[result.key] = result
