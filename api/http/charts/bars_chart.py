"""Amounts beside each other: bytes by NIC, memory by rank, bytes along a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autosync.api.http.charts.axes import Scale, across, shortened
from autosync.api.http.charts.chart import Chart, Drawing, drawings
from autosync.api.http.charts.svg_elements import line, rectangle, text_at

WIDTH, BAR = 480, 13
MOST_ROWS = 16
LISTED = 256


@dataclass(frozen=True, slots=True)
class Amounts:
    """One row: an amount for each series, None where it is not known."""

    name: str
    values: tuple[float | None, ...]


def bars_chart(
    name: str,
    title: str,
    note: str,
    series: Sequence[tuple[str, str]],
    rows: Sequence[Amounts],
    shown: Callable[[float], str],
    limit: float | None = None,
    footnote: str = "",
) -> Chart:
    """series: class and name of each colour. The largest are drawn; the table has more.
    limit: a line that bars should stay below."""
    largest = max((v for row in rows for v in row.values if v is not None), default=0.0)
    most = max(largest, limit or 0.0) or 1.0
    drawn = rows
    if len(rows) > MOST_ROWS:
        drawn = sorted(rows, key=lambda row: -max((v or 0.0) for v in row.values))[:MOST_ROWS]

    def draw(width: int) -> Drawing:
        names = min(150, width // 3)
        each = BAR * len(series) + 10
        bottom = 14 + each * len(drawn)
        x = Scale(0.0, most * 1.04, names, width - 24)
        parts = across(x, 8, bottom, shown)
        for place, row in enumerate(drawn):
            top = 14 + each * place
            middle = top + BAR * len(series) / 2 + 4
            parts.append(text_at(shortened(row.name, names - 10), names - 8, middle, "end"))
            for index, (value, (kind, words)) in enumerate(zip(row.values, series, strict=True)):
                if value is not None:
                    tip = f"{row.name}, {words}: {shown(value)}"
                    y = top + BAR * index
                    parts.append(rectangle(names, y, x.at(value) - names, BAR - 2, kind, tip))
        if limit is not None:
            parts.append(line(x.at(limit), 8, x.at(limit), bottom, "rule limit"))
        return Drawing(width, bottom + 24, tuple(parts))

    told = ", ".join(
        f"{words} {shown(max(row.values[i] or 0.0 for row in rows))}"
        for i, (_, words) in enumerate(series)
    )
    words = f"{title}, at most: {told}"
    return Chart(
        name,
        title,
        note,
        words,
        drawings(draw, words, WIDTH),
        ("Of", *(words for _, words in series)),
        tuple(
            (row.name, *("–" if v is None else shown(v) for v in row.values))
            for row in rows[:LISTED]
        ),
        tuple(series),
        f"{footnote} The table has the first {LISTED}.".strip() if len(rows) > LISTED else footnote,
    )
