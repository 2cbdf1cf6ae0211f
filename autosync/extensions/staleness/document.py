"""What a strategy says of staleness: by how many iterations its updates may be late."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from autosync.documents import STRICT
from autosync.errors import InvalidStrategy
from autosync.extensions.document import ExtensionDocument, HasExtensions

MAX_STALENESS = 255


@dataclass(frozen=True, slots=True)
class Staleness(ExtensionDocument):
    """Values that a rank reads of parameter servers are at most `iterations` old. A synchronous
    strategy has no such entry."""

    iterations: int
    key: ClassVar[str] = "staleness"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if not 1 <= self.iterations <= MAX_STALENESS:
            raise InvalidStrategy(
                f"staleness is {self.iterations} iterations.",
                thing="staleness",
                value=self.iterations,
                remedy=f"Use 1 to {MAX_STALENESS}; a synchronous strategy has none, or 0 in JSON.",
            )

    @property
    def iterations_in_flight(self) -> int:
        return self.iterations


def late_by(iterations: int) -> tuple[Staleness, ...]:
    """The entry of a strategy; none where it is synchronous."""
    return (Staleness(iterations),) if iterations else ()


def iterations_of(document: HasExtensions) -> int:
    """By how many its updates may be late; 0 where it is synchronous."""
    entry = document.extension(Staleness)
    return entry.iterations if entry is not None else 0
