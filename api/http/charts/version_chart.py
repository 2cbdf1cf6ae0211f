"""Versions of the simulator: how rightly each ranks, beside the one before it."""

from collections.abc import Sequence

from markupsafe import Markup

from autosync.api.http.charts.axes import Scale, scale_of, upright
from autosync.api.http.charts.chart import Chart, Drawing, drawings
from autosync.api.http.charts.svg_elements import dot, line, rectangle, text_at
from autosync.api.views.schemas import SimulatorVersion

WIDTH, HEIGHT = 1040, 280
LABELLED = 24
"""Versions whose numbers fit below the axis; of more, some are told."""
APART = 5
"""Pixels from the middle of a version to each of its two dots."""


def version_chart(versions: Sequence[SimulatorVersion], in_use: int, shown: int | None) -> Chart:
    """versions: at least one, the oldest first. shown: the version whose page it is."""
    judged = [share for each in versions for share in _shares(each)]

    def draw(width: int) -> Drawing:
        left, right, top, bottom = 44, width - 12, 30, HEIGHT - 40
        y = _percent_scale(judged, bottom, top)
        parts = upright(y, left, right, lambda value: f"{value:.3g} %", "pairs ranked rightly")
        wide = (right - left) / len(versions)
        every = -(-len(versions) // min(LABELLED, max(1, int((right - left) / 30))))
        for place, each in enumerate(versions):
            middle = left + wide * (place + 0.5)
            if each.number == shown:
                band = min(wide, 40)
                parts.insert(0, rectangle(middle - band / 2, top, band, bottom - top, "shown"))
            parts += _change(each, "held", middle - APART, y)
            parts += _change(each, "picks", middle + APART, y)
            if place % every == 0:
                kind = "row-name" if each.number == in_use else ""
                parts.append(text_at(str(each.number), middle, bottom + 15, "middle", kind))
        parts.append(text_at("version", (left + right) / 2, bottom + 31, "middle"))
        return Drawing(width, HEIGHT, tuple(parts))

    words = f"Of {len(versions)} versions the last: {_told(versions[-1], 'held')}"
    return Chart(
        "versions",
        "Accuracy over versions",
        "of strategies that no version learns from; a stroke leads from the version before it, "
        "judged on the same",
        words,
        drawings(draw, words, WIDTH),
        ("Version", "Held out", "Before", "Picks", "Before", "Unseen models", "Trials", "Use"),
        tuple(_row(each, in_use) for each in reversed(versions)),
        (
            ("held", "held-out strategies"),
            ("picks", "of them, what searches picked"),
            ("before", "the version before"),
        ),
        "Held-out strategies become more from version to version: compare a version with the one "
        "before it, not with an earlier one.",
    )


def _change(version: SimulatorVersion, kind: str, x: float, y: Scale) -> list[Markup]:
    """From what the version before reached to its own."""
    own, before = _judged(version, kind)
    if own is None:
        return []
    told, drawn = _told(version, kind), []
    if before is not None:
        drawn = [
            line(x, y.at(before * 100), x, y.at(own * 100), f"change {kind}"),
            dot(x, y.at(before * 100), 3, f"mark before {kind}", told),
        ]
    return [*drawn, dot(x, y.at(own * 100), 4, f"mark {kind}", told)]


def _percent_scale(shares: Sequence[float], start: float, stop: float) -> Scale:
    found = scale_of([share * 100 for share in shares], start, stop)
    return Scale(max(0.0, found.low), min(100.0, found.high), start, stop)


def _judged(version: SimulatorVersion, kind: str) -> tuple[float | None, float | None]:
    """Its share, and that of the version before."""
    if kind == "held":
        return version.accuracy, version.parent_accuracy
    return version.pick_accuracy, version.parent_pick_accuracy


def _shares(version: SimulatorVersion) -> list[float]:
    both = (*_judged(version, "held"), *_judged(version, "picks"))
    return [share for share in both if share is not None]


def _told(version: SimulatorVersion, kind: str) -> str:
    own, before = _judged(version, kind)
    what = "held-out strategies" if kind == "held" else "picks"
    beside = f", version {version.parent} {before:.1%}" if before is not None else ""
    known = "not judged" if own is None else f"{own:.1%}"
    return f"version {version.number} on {what}: {known}{beside}"


def _row(version: SimulatorVersion, in_use: int) -> tuple[str, ...]:
    use = "in use" if version.number == in_use else "" if version.promoted else "kept aside"
    shares = (*_judged(version, "held"), *_judged(version, "picks"), version.unseen_accuracy)
    return (
        str(version.number),
        *("–" if share is None else f"{share:.1%}" for share in shares),
        f"{version.trials:,}",
        use,
    )
