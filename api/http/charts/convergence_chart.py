"""Step time of every trial in the order they ran, and the best so far."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from autosync.api.http.charts.axes import across, in_reach, plain, scale_of, upright
from autosync.api.http.charts.chart import Chart, Drawing, drawings, milliseconds
from autosync.api.http.charts.svg_elements import dot, line, path, text_at

WIDTH, HEIGHT = 480, 300
MOST_DOTS = 600
"""More are thinned out: the best and the worst of every stretch stay."""


@dataclass(frozen=True, slots=True)
class ConvergencePoint:
    """best_seconds: the smallest median of a strategy after this trial."""

    position: int
    phase: str
    step_seconds: float
    best_seconds: float
    is_ddp: bool


def convergence_chart(
    points: Sequence[ConvergencePoint],
    ddp_seconds: float | None,
    limit_seconds: float | None,
    within: Sequence[float] = (),
) -> Chart:
    """within: further seconds that the axis must show, so that two charts compare."""
    measured = [p.step_seconds for p in points]
    rules = [(s, n) for s, n in ((ddp_seconds, "DDP"), (limit_seconds, "limit")) if s is not None]
    lines = [(s, n) for s, n in rules if in_reach(s, [*measured, *within])]
    shown = thinned(points)

    def draw(width: int) -> Drawing:
        right, bottom = width - 46, HEIGHT - 40
        x = scale_of((p.position for p in points), 44, right)
        seconds = [*measured, *(s for s, _ in lines), *within]
        y = scale_of((s * 1e3 for s in seconds), bottom, 22)
        parts = [*across(x, 22, bottom, _whole, "trial"), *upright(y, 44, right, plain, "ms")]
        for rule_seconds, name in lines:
            at = y.at(rule_seconds * 1e3)
            parts += [
                line(44, at, right, at, f"rule {name.lower()}"),
                text_at(name, right + 4, at + 4, class_="rule-name"),
            ]
        parts += [_mark(p, x.at(p.position), y.at(p.step_seconds * 1e3)) for p in shown]
        parts.append(path([(x.at(p.position), y.at(b * 1e3)) for p, b in _steps(points)], "best"))
        return Drawing(width, HEIGHT, tuple(parts))

    better = _improvements(points)
    words = (
        f"{len(points)} trials; the best went from {milliseconds(points[0].best_seconds)} to "
        f"{milliseconds(points[-1].best_seconds)}"
        + "".join(f", {name} {milliseconds(seconds)}" for seconds, name in rules)
    )
    return Chart(
        "convergence",
        "Convergence",
        "step time of every trial, and the best so far by medians",
        words,
        drawings(draw, words, WIDTH),
        ("Trial", "Phase", "Best so far"),
        tuple((str(p.position), p.phase, milliseconds(p.best_seconds)) for p in better),
        (("search", "search"), ("confirm", "confirmation"), ("best", "best so far")),
        "Repeats of the confirmation can raise the best."
        + "".join(f" {n} {milliseconds(s)}." for s, n in rules if (s, n) not in lines),
    )


def thinned(points: Sequence[ConvergencePoint]) -> Sequence[ConvergencePoint]:
    """At most so many dots: of every stretch the fastest and the slowest."""
    if len(points) <= MOST_DOTS:
        return points
    stretch = -(-2 * len(points) // MOST_DOTS)
    kept: list[ConvergencePoint] = []
    for first in range(0, len(points), stretch):
        part = points[first : first + stretch]
        kept += {min(part, key=_seconds), max(part, key=_seconds)}
    return kept


def _seconds(point: ConvergencePoint) -> float:
    return point.step_seconds


def _mark(point: ConvergencePoint, x: float, y: float) -> Markup:
    tip = f"trial {point.position}, {point.phase}: {milliseconds(point.step_seconds)}"
    kind = "ddp" if point.is_ddp else point.phase
    return dot(x, y, 3.5, f"mark {kind}", tip + (", DDP" if point.is_ddp else ""))


def _steps(points: Sequence[ConvergencePoint]) -> list[tuple[ConvergencePoint, float]]:
    """A staircase: each change at its trial."""
    found: list[tuple[ConvergencePoint, float]] = []
    for place, point in enumerate(points):
        if place and points[place - 1].best_seconds != point.best_seconds:
            found.append((point, points[place - 1].best_seconds))
        if not place or place == len(points) - 1 or found[-1][1] != point.best_seconds:
            found.append((point, point.best_seconds))
    return found


def _improvements(points: Sequence[ConvergencePoint]) -> list[ConvergencePoint]:
    return [
        point
        for place, point in enumerate(points)
        if not place or points[place - 1].best_seconds != point.best_seconds
    ]


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else ""
