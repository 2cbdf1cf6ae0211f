"""What a chart is: plots that `static/charts.js` draws with Chart.js, and the table behind them.

A chart knows numbers and words, neither tunings nor requests.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from autosync.api.views.schemas import SimulatorVersion
from autosync.units import bytes_in_words, counted

Unit = Literal["", "ms", "bytes", "%", "×"]
Span = float | tuple[float, float]
Point = tuple[Span, Span, str]
"""x, y and the words that hovering shows. A bar reaches from one number of a pair to the other;
on an axis of categories the number is the place of one."""
REACH = 1.5
"""A rule may lie so many times the range of the values beyond them; else only a note states it."""
MOST_BARS, LISTED = 16, 256
"""Rows of a bar chart, and of the table behind it."""
STRETCHES = 120
"""Bars along a model's forward pass, at most; consecutive operations share one."""


@dataclass(frozen=True, slots=True)
class Axis:
    """unit: how ticks are written. categories: names at 0, 1, ...; empty for an axis of numbers.
    low, high: None where they follow from the values. log: of powers of ten."""

    title: str = ""
    unit: Unit = ""
    categories: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    log: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """name: in the legend; empty for none. colour: a variable of app.css without its hyphens.
    thickness: of bars, in pixels; 0 where they share the width."""

    name: str
    colour: str
    kind: Literal["dots", "rings", "strokes", "line", "steps", "bars"]
    points: tuple[Point, ...]
    thickness: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """A line across the plot at a value of an axis."""

    axis: Literal["x", "y"]
    at: float
    name: str


@dataclass(frozen=True, slots=True)
class Plot:
    """title: above it. wide: too detailed for a phone's width, which scrolls it."""

    x: Axis
    y: Axis
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = ()
    title: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """name: of its element. title, note: above it. words: what it shows, for screen readers.
    columns, rows: the table behind it. footnote: below."""

    name: str
    title: str
    note: str
    words: str
    plots: tuple[Plot, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    footnote: str = ""


@dataclass(frozen=True, slots=True)
class Amounts:
    """A row of a bar chart: an amount for each series, None where it is not known."""

    name: str
    values: tuple[float | None, ...]


def bars_chart(
    name: str,
    title: str,
    note: str,
    series: Sequence[str],
    rows: Sequence[Amounts],
    limit: float | None = None,
    footnote: str = "",
) -> Chart:
    """Bytes beside each other. series: names. The largest rows are drawn; the table has more.
    limit: a line that bars should stay below."""
    drawn = rows
    if len(rows) > MOST_BARS:
        drawn = sorted(rows, key=lambda row: -max(v or 0.0 for v in row.values))[:MOST_BARS]
    bars = []
    for index, (words, colour) in enumerate(zip(series, ("accent", "series-2"), strict=False)):
        shift = (index - (len(series) - 1) / 2) * 0.4
        points = tuple(
            (value, place + shift, f"{row.name}, {words}: {bytes_in_words(value)}")
            for place, row in enumerate(drawn)
            if (value := row.values[index]) is not None
        )
        bars.append(Series(words, colour, "bars", points, thickness=11))
    most = (max(row.values[i] or 0.0 for row in rows) for i in range(len(series)))
    told = (f"{words} {bytes_in_words(v)}" for words, v in zip(series, most, strict=True))
    if len(drawn) < len(rows):
        footnote = f"{footnote} Drawn are the {MOST_BARS} largest of {len(rows):,}.".strip()
    if len(rows) > LISTED:
        footnote = f"{footnote} The table has the first {LISTED}.".strip()
    plot = Plot(
        Axis(unit="bytes", low=0.0),
        Axis(categories=tuple(row.name for row in drawn)),
        tuple(bars),
        () if limit is None else (Rule("x", limit, "limit"),),
    )
    return Chart(
        name,
        title,
        note,
        f"{title}, at most: {', '.join(told)}",
        (plot,),
        ("Of", *series),
        tuple((row.name, *map(bytes_in_words, row.values)) for row in rows[:LISTED]),
        footnote,
    )


@dataclass(frozen=True, slots=True)
class OperationCost:
    """share: of the compute of an iteration. size_bytes: of the gradients that are complete after
    its backward pass."""

    name: str
    share: float
    size_bytes: int


def model_chart(operations: Sequence[OperationCost], time_note: str) -> Chart:
    """Where a model's compute time and its gradients' bytes are, along its forward pass.
    time_note: whence the shares."""
    count = min(STRETCHES, len(operations))
    shares, sizes, firsts = [], [], []
    for place in range(count):
        first, last = (each * len(operations) // count for each in (place, place + 1))
        part = operations[first:last]
        name = part[0].name if len(part) == 1 else f"{part[0].name} to {part[-1].name}"
        share, size = sum(each.share for each in part), sum(each.size_bytes for each in part)
        words = f"{name}: {share:.1%} of compute, {bytes_in_words(size)}"
        shares.append((place, share * 100, words))
        sizes.append((place, size, words))
        firsts.append(f"{first + 1:,}")
    largest = sorted(operations, key=lambda each: (-each.size_bytes, -each.share))[:20]
    x = Axis("operation", categories=tuple(firsts))
    return Chart(
        "model",
        "Where time and bytes are",
        f"operations in the order of the forward pass; {time_note}",
        f"Share of compute and bytes of gradients along {counted(len(operations), 'operation')}",
        (
            Plot(
                x,
                Axis("share of compute", "%", low=0.0),
                (Series("", "accent", "bars", tuple(shares)),),
            ),
            Plot(
                x,
                Axis("gradients", "bytes", low=0.0),
                (Series("", "series-2", "bars", tuple(sizes)),),
            ),
        ),
        ("Operation", "Share of compute", "Gradients"),
        tuple((e.name, f"{e.share:.2%}", bytes_in_words(e.size_bytes)) for e in largest),
        f"The table has the {len(largest)} with most bytes of {len(operations)}.",
    )


def version_chart(versions: Sequence[SimulatorVersion], in_use: int, shown: int | None) -> Chart:
    """How accurately versions of the simulator rank, each beside its parent on the same strategies.
    versions: at least one, the oldest first. shown: the version whose page it is."""
    series: list[Series] = []
    for name, colour, shift, judged in (
        ("held-out strategies", "accent", -0.12, lambda v: (v.accuracy, v.parent_accuracy)),
        (
            "of them, what searches chose",
            "series-2",
            0.12,
            lambda v: (v.pick_accuracy, v.parent_pick_accuracy),
        ),
    ):
        series += _judged(versions, name, colour, shift, judged)
    return Chart(
        "versions",
        "Accuracy over versions",
        "pairs of strategies that are ranked correctly, of strategies that no version learns from; "
        "a ring is the version before it on the same strategies",
        f"{counted(len(versions), 'version')}; the last ranks {_percent(versions[-1].accuracy)} of "
        "held-out pairs correctly",
        (
            Plot(
                Axis("version"),
                Axis("pairs ranked correctly", "%"),
                tuple(series),
                () if shown is None else (Rule("x", shown, "this version"),),
            ),
        ),
        (
            "Version",
            "Held out",
            "Before",
            "Chosen by searches",
            "Before",
            "Unseen models",
            "Trials",
            "Use",
        ),
        tuple(
            (
                str(v.number),
                *map(
                    _percent,
                    (
                        v.accuracy,
                        v.parent_accuracy,
                        v.pick_accuracy,
                        v.parent_pick_accuracy,
                        v.unseen_accuracy,
                    ),
                ),
                f"{v.trials:,}",
                "in use" if v.number == in_use else "" if v.promoted else "kept aside",
            )
            for v in reversed(versions)
        ),
        "Held-out strategies become more from version to version: compare a version with the one "
        "before it, not with an earlier one.",
    )


def _judged(
    versions: Sequence[SimulatorVersion],
    name: str,
    colour: str,
    shift: float,
    judged: Callable[[SimulatorVersion], tuple[float | None, float | None]],
) -> list[Series]:
    own: list[Point] = []
    before: list[Point] = []
    for version in versions:
        share, parents = judged(version)
        words = f"version {version.number}, {name}: {_percent(share)}, before {_percent(parents)}"
        if share is not None:
            own.append((version.number + shift, share * 100, words))
            if parents is not None:
                before.append((version.number + shift, parents * 100, words))
    dots = Series(name, colour, "dots", tuple(own))
    return [dots, Series("", colour, "rings", tuple(before))]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def in_reach(value: float, values: Iterable[float]) -> bool:
    """Whether an axis of the values can show this one, too, and still tell them apart."""
    known = [each for each in values if math.isfinite(each)]
    room = REACH * (max(known) - min(known) or abs(known[0]))
    return min(known) - room <= value <= max(known) + room
