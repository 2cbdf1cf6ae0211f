"""How right predictions were: against measurements, and pairs ranked rightly by round."""

from collections.abc import Sequence
from dataclasses import dataclass

from autosync.api.http.charts.axes import Scale, across, in_reach, plain, scale_of, upright
from autosync.api.http.charts.chart import Chart, Drawing, drawings, milliseconds
from autosync.api.http.charts.svg_elements import dot, line, rectangle, text_at
from autosync.api.views.dashboard.trial_views import RankedPairs

WIDTH, HEIGHT = 480, 300
MOST_DOTS = 400
LISTED = 25


@dataclass(frozen=True, slots=True)
class PredictedPoint:
    """name: of the strategy."""

    name: str
    predicted_seconds: float
    step_seconds: float
    is_ddp: bool


def prediction_chart(
    points: Sequence[PredictedPoint], limit_seconds: float | None, simulator: str
) -> Chart:
    """On the diagonal predictions are right."""
    fastest = sorted(points, key=lambda point: point.step_seconds)
    stride = -(-len(points) // MOST_DOTS)
    seconds = [s * 1e3 for p in points for s in (p.predicted_seconds, p.step_seconds)]
    told_limit = [] if limit_seconds is None else [limit_seconds * 1e3]
    limit = [at for at in told_limit if in_reach(at, seconds)]

    def draw(width: int) -> Drawing:
        right, bottom = width - 12, HEIGHT - 40
        both = seconds + limit
        x, y = scale_of(both, 44, right), scale_of(both, bottom, 22)
        parts = [
            *across(x, 22, bottom, plain, "predicted ms"),
            *upright(y, 44, right, plain, "measured ms"),
            line(x.start, y.start, x.stop, y.stop, "rule"),
        ]
        for at in limit:
            parts += [
                line(44, y.at(at), right, y.at(at), "rule limit"),
                text_at("limit", right, y.at(at) - 4, "end", "rule-name"),
            ]
        for point in [p for p in fastest[::stride] if not p.is_ddp] + [
            p for p in points if p.is_ddp
        ]:
            predicted, measured = point.predicted_seconds, point.step_seconds
            told = f"predicted {milliseconds(predicted)}, measured {milliseconds(measured)}"
            at_x, at_y = x.at(predicted * 1e3), y.at(measured * 1e3)
            kind = "ddp" if point.is_ddp else "search"
            parts.append(dot(at_x, at_y, 4, f"mark {kind}", f"{point.name}: {told}"))
        return Drawing(width, HEIGHT, tuple(parts))

    words = f"Predicted and measured step time of {len(points)} strategies"
    of_ddp = (("ddp", "DDP"),) if any(point.is_ddp for point in points) else ()
    return Chart(
        "accuracy",
        "Predicted and measured",
        f"on the diagonal the {simulator} simulator is right",
        words,
        drawings(draw, words, WIDTH),
        ("Strategy", "Predicted", "Measured"),
        tuple(
            (p.name, milliseconds(p.predicted_seconds), milliseconds(p.step_seconds))
            for p in fastest[:LISTED]
        ),
        (("search", "strategies"), *of_ddp),
        f"The fastest {LISTED} of {len(points)}." if len(points) > LISTED else "",
    )


def rounds_chart(rounds: Sequence[RankedPairs]) -> Chart:
    """rounds: at least one."""

    def draw(width: int) -> Drawing:
        right, bottom = width - 42, HEIGHT - 40
        y = Scale(0.0, 100.0, bottom, 30)
        wide = (right - 44) / len(rounds)
        parts = upright(y, 44, right, lambda value: f"{value:.0f} %", "pairs ranked rightly")
        for place, each in enumerate(rounds):
            left, top = 44 + place * wide, y.at(each.right * 100)
            tip = f"round {each.round + 1}: {each.right:.0%} of {each.pairs} pairs"
            inner = min(wide * 0.7, 64)
            middle = left + wide / 2
            parts.append(rectangle(middle - inner / 2, top, inner, bottom - top, "bar", tip))
            if len(rounds) <= 12 or place % (len(rounds) // 8) == 0:
                parts.append(text_at(str(each.round + 1), middle, bottom + 15, "middle"))
        parts.append(text_at("round", (44 + right) / 2, bottom + 31, "middle"))
        parts.append(line(44, y.at(50), right, y.at(50), "rule"))
        parts.append(text_at("chance", right + 3, y.at(50) + 4, class_="rule-name"))
        return Drawing(width, HEIGHT, tuple(parts))

    last = rounds[-1]
    words = f"In the last of {len(rounds)} rounds {last.right:.0%} of the pairs were ranked rightly"
    return Chart(
        "rounds",
        "Pairs ranked rightly",
        "of the strategies tried in each round of the search, by the predictions that chose them",
        words,
        drawings(draw, words, WIDTH),
        ("Round", "Ranked rightly", "Pairs", "Strategies"),
        tuple(
            (str(r.round + 1), f"{r.right:.0%}", f"{r.pairs:,}", str(r.strategies)) for r in rounds
        ),
        footnote="A search tries what it predicts to be fast, so these are hard pairs: chance is "
        "50 %.",
    )
