"""The measurements of a tuning, as a document from which another one begins."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict

from autosync.documents import STRICT, UNLESS_ONE
from autosync.errors import InvalidInput
from autosync.strategy import Strategy


@dataclass(frozen=True, slots=True)
class EarlierTrial:
    """step_seconds: the median then. origin: as a `Candidate`'s."""

    strategy: Strategy
    step_seconds: float
    origin: str
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if not self.step_seconds > 0:
            raise InvalidInput(
                f"an earlier trial took {self.step_seconds} seconds.",
                thing="step_seconds",
                value=self.step_seconds,
                remedy="Leave out what was not measured.",
            )


@dataclass(frozen=True, slots=True)
class EarlierTrials:
    """Measured strategies, each once. accumulate: batches of an update, whose seconds they are."""

    trials: tuple[EarlierTrial, ...]
    accumulate: Annotated[int, UNLESS_ONE] = 1
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
