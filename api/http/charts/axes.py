"""Scales from values to pixels, their ticks, and the axes drawn from them."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from markupsafe import Markup

from autosync.api.http.charts.svg_elements import line, text_at

CHARACTER = 6.6
"""Pixels of a character, at the charts' size of letters."""

REACH = 1.5
"""A line may lie so many times the width of the values beyond them; else it is only told."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Values low to high lie at pixels start to stop."""

    low: float
    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values within, `about` so many."""
        step = _round_step((self.high - self.low) / about)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


def scale_of(values: Iterable[float], start: float, stop: float, from_zero: bool = False) -> Scale:
    """A scale on which all values lie, with some room around them."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    return Scale(0.0 if from_zero else low - room, high + room, start, stop)


def in_reach(value: float, values: Iterable[float]) -> bool:
    """Whether an axis of the values can show this one, too, and still tell them apart."""
    known = list(values)
    room = REACH * (max(known) - min(known) or abs(known[0]))
    return min(known) - room <= value <= max(known) + room


def across(
    scale: Scale, top: float, bottom: float, words: Callable[[float], str], name: str = ""
) -> list[Markup]:
    """A horizontal axis with lines of its ticks from top to bottom, and its name below."""
    drawn = []
    for tick in scale.ticks(max(2, int(abs(scale.stop - scale.start) / 90))):
        x = scale.at(tick)
        drawn += [line(x, top, x, bottom, "grid"), text_at(words(tick), x, bottom + 15, "middle")]
    if name:
        drawn.append(text_at(name, (scale.start + scale.stop) / 2, bottom + 31, "middle"))
    return drawn


def upright(
    scale: Scale, left: float, right: float, words: Callable[[float], str], name: str = ""
) -> list[Markup]:
    """A vertical axis with lines of its ticks from left to right, and its name above."""
    drawn = []
    for tick in scale.ticks():
        y = scale.at(tick)
        drawn += [line(left, y, right, y, "grid"), text_at(words(tick), left - 6, y + 4, "end")]
    if name:
        drawn.append(text_at(name, 2, min(scale.start, scale.stop) - 8))
    return drawn


def plain(value: float) -> str:
    """A number of a tick: no digits that say nothing."""
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def shortened(words: str, width: float) -> str:
    """As many characters as go into `width` pixels."""
    most = max(4, int(width / CHARACTER))
    return words if len(words) <= most else words[: most - 1] + "…"


def _round_step(step: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(f for f in (1, 2, 5, 10) if f * power >= step * (1 - 1e-9))
