"""Ranked strategies that hardly differ, in one row: what differs in their words is a range."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

NEAR = 0.01
"""Predictions that differ by less tell nothing: so well do trials repeat (1 %, the median of quiet
trials on the testbed)."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class RankedWords:
    """A ranked strategy as a table shows it. made_by: its origin."""

    place: int
    words: str
    made_by: str
    predicted_seconds: float
    is_ddp: bool = False


@dataclass(slots=True)
class AlikeStrategies:
    """Strategies whose words differ in numbers alone and whose predictions are near; fastest
    first."""

    members: list[RankedWords] = field(default_factory=list)

    @property
    def place(self) -> int:
        return self.members[0].place

    @property
    def predicted_seconds(self) -> tuple[float, float]:
        """Of the fastest and of the slowest."""
        return self.members[0].predicted_seconds, self.members[-1].predicted_seconds

    @property
    def words(self) -> str:
        """Those of all members; a number that differs stands as `2 to 6`."""
        numbers = zip(*(NUMBER.findall(each.words) for each in self.members), strict=True)
        ranges = iter([_range(column) for column in numbers])
        return NUMBER.sub(lambda found: next(ranges), self.members[0].words)

    @property
    def made_by(self) -> str:
        return ", ".join(dict.fromkeys(each.made_by for each in self.members))

    @property
    def is_ddp(self) -> bool:
        return any(each.is_ddp for each in self.members)


def grouped(ranked: Sequence[RankedWords]) -> list[AlikeStrategies]:
    """Every strategy in one group, the groups by their fastest. ranked: fastest first."""
    groups: list[AlikeStrategies] = []
    last: dict[str, AlikeStrategies] = {}
    for each in ranked:
        kind = NUMBER.sub("#", each.words)
        group = last.get(kind)
        if group is None or each.predicted_seconds > (1 + NEAR) * group.predicted_seconds[0]:
            group = last[kind] = AlikeStrategies()
            groups.append(group)
        group.members.append(each)
    return groups


def _range(numbers: Sequence[str]) -> str:
    """`2 to 6`, each as it was written; one number where all are alike."""
    ordered = sorted(set(numbers), key=float)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"
