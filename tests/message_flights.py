"""What a timeline, measured or predicted, says about all-gathers that wait for an idle wire."""

from collections.abc import Sequence
from typing import NamedTuple


class Flight(NamedTuple):
    """A message from when it was issued to when it had landed, in seconds."""

    message: int
    gathers: bool
    carries_values: bool
    issued: float
    landed: float


def crowded(flights: Sequence[Flight], rounding: float = 0.0) -> str:
    """Empty if every such all-gather of an iteration left while neither a first half nor another of
    its kind was in flight, or behind the last first half.

    rounding: seconds by which messages may seem to overlap.
    """
    firsts = [each for each in flights if not (each.gathers or each.carries_values)]
    gathers = [each for each in flights if each.gathers]
    last = max((first.landed for first in firsts), default=0.0)
    for gather in gathers:
        if gather.issued >= last - rounding:
            continue
        for other in (*firsts, *gathers):
            before = other is not gather and other.issued < gather.issued - rounding
            if before and other.landed > gather.issued + rounding:
                return f"{gather} left while {other} was in flight"
    return ""
