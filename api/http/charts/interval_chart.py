"""The confirmation: speed-ups over the baseline repeat by repeat, as intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

from autosync.api.http.charts.axes import across, in_reach, scale_of, shortened
from autosync.api.http.charts.chart import Chart, Drawing, drawings
from autosync.api.http.charts.svg_elements import dot, line, rectangle, text_at

WIDTH, ROW = 480, 46


@dataclass(frozen=True, slots=True)
class SpeedupInterval:
    """repeats: the baseline's seconds by the strategy's, in each repeat. low, high: percentiles 10
    and 90."""

    name: str
    low: float
    median: float
    high: float
    repeats: tuple[float, ...]
    is_answer: bool


def interval_chart(
    intervals: Sequence[SpeedupInterval],
    limit_speedup: float | None,
    baseline: str,
    note: str = "",
) -> Chart:
    """limit_speedup: what the limit of the domain would be over the baseline. baseline: its name.
    note: on the baseline."""
    values = [value for each in intervals for value in each.repeats]
    rules = [(1.0, baseline, "baseline")]
    if limit_speedup and in_reach(limit_speedup, [1.0, *values]):
        rules.append((limit_speedup, "limit", "limit"))

    def draw(width: int) -> Drawing:
        top, bottom = 26, 26 + ROW * len(intervals)
        x = scale_of((*values, *(value for value, _, _ in rules)), 14, width - 14)
        parts = across(
            x, top, bottom, lambda value: f"{value:.2f}×", f"times as fast as {baseline}"
        )
        for value, name, kind in rules:
            at = x.at(value)
            half = 4 * len(name)  # of the text's width
            anchor = "end" if at > width - half else "start" if at < half else "middle"
            parts += [
                line(at, top, at, bottom, f"rule {kind}"),
                text_at(name, at, top - 6, anchor, "rule-name"),
            ]
        for place, each in enumerate(intervals):
            y = top + ROW * place + 30
            told = f"{each.median:.2f}× ({each.low:.2f} to {each.high:.2f})"
            kind = "answer" if each.is_answer else "other"
            name = shortened(f"{told}  {each.name}", width - 20)
            parts += [
                text_at(name, 14, y - 14, class_="row-name"),
                rectangle(
                    x.at(each.low),
                    y - 5,
                    x.at(each.high) - x.at(each.low),
                    10,
                    f"interval {kind}",
                    told,
                ),
                *(dot(x.at(value), y, 2.5, "repeat", f"{value:.3f}×") for value in each.repeats),
                line(x.at(each.median), y - 8, x.at(each.median), y + 8, "median"),
            ]
        return Drawing(width, bottom + 38, tuple(parts))

    words = "; ".join(
        f"{each.name}: {each.median:.2f} times as fast as {baseline}, "
        f"{each.low:.2f} to {each.high:.2f}"
        for each in intervals
    )
    told = [note] if note else []
    if limit_speedup:
        told.append(f"The limit is {limit_speedup:.2f} times as fast as {baseline}.")
    return Chart(
        "confirmation",
        "Confirmation",
        "interleaved repeats: a dot each; bars from percentile 10 to 90, strokes at the median",
        words,
        drawings(draw, words, WIDTH),
        ("Strategy", "Low", "Median", "High", "Repeats"),
        tuple(
            (e.name, f"{e.low:.3f}×", f"{e.median:.3f}×", f"{e.high:.3f}×", str(len(e.repeats)))
            for e in intervals
        ),
        footnote=" ".join(told),
    )
