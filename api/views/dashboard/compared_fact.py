"""One line of a comparison."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ComparedFact:
    """words: of each thing that is compared."""

    name: str
    words: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.words)) > 1
