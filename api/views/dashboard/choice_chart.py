"""Step time by choice: the measured strategies of a tuning, grouped by what each of them chose."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from autosync.api.views.charts import Axis, Chart, Plot, Point, Rule, Series
from autosync.api.views.dashboard.strategy_labels import StrategyLabel
from autosync.units import counted, milliseconds, milliseconds_between

CHOICES = {
    "method": "Method",
    "order": "Order of messages",
    "slices": "Slices",
    "overlap": "Next forward pass",
    "shares": "Batch shares",
}
"""Kinds of chips that are choices, and how the table calls them."""
OTHERWISE = {
    "order": "as gradients become ready",
    "slices": "no slices",
    "overlap": "ends before next forward pass",
    "shares": "equal batch shares",
}
"""What a strategy without such a chip does."""


@dataclass(frozen=True, slots=True)
class ChosenValue:
    """seconds: of each strategy that made this choice, the fastest first."""

    kind: str
    value: str
    seconds: tuple[float, ...]


def chosen_values(
    labels: Mapping[str, StrategyLabel], seconds: Mapping[str, float]
) -> list[ChosenValue]:
    """Kinds of which strategies chose differently, each with its values, the fastest first.

    labels, seconds: by the strategy's id; a strategy without a label is left out.
    """
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in CHOICES}
    for key, label in labels.items():
        if key not in seconds or any(chip.kind == "engine" for chip in label.chips):
            continue  # engines of torch decide these by themselves
        for kind, by_value in found.items():
            for value in _values(label, kind):
                by_value.setdefault(value, []).append(seconds[key])
    return [
        ChosenValue(kind, value, tuple(sorted(mine)))
        for kind, by_value in found.items()
        if len(by_value) > 1
        for value, mine in sorted(by_value.items(), key=lambda each: min(each[1]))
    ]


def choice_chart(values: list[ChosenValue], ddp_seconds: float | None, left_out: str = "") -> Chart:
    """values: at least one. ddp_seconds: a line, where DDP was measured. left_out: a sentence on
    measured strategies that are not among them."""
    spans: list[Point] = []
    medians: list[Point] = []
    for row, each in enumerate(values):
        low, high = each.seconds[0], each.seconds[-1]
        middle = median(each.seconds)
        tried = counted(len(each.seconds), "strategy", "strategies")
        words = f"{each.value}: {tried}, {milliseconds_between(low, high)}"
        spans.append(((low * 1e3, high * 1e3), row, words))
        medians.append((middle * 1e3, row, f"{each.value}: median {milliseconds(middle)}"))
    return Chart(
        "choices",
        "Step time by choice",
        "the fastest, the median and the slowest of the strategies that made each choice",
        "; ".join(f"{each.value}: fastest {milliseconds(each.seconds[0])}" for each in values),
        (
            Plot(
                Axis("ms an iteration", "ms"),
                Axis(categories=tuple(each.value for each in values)),
                (
                    Series("median", "ink", "strokes", tuple(medians)),
                    Series("fastest to slowest", "interval", "bars", tuple(spans), 12),
                ),
                () if ddp_seconds is None else (Rule("x", ddp_seconds * 1e3, "DDP"),),
            ),
        ),
        ("Choice", "Of", "Strategies", "Fastest", "Median", "Slowest"),
        tuple(
            (
                each.value,
                CHOICES[each.kind],
                str(len(each.seconds)),
                milliseconds(each.seconds[0]),
                milliseconds(median(each.seconds)),
                milliseconds(each.seconds[-1]),
            )
            for each in values
        ),
        "Strategies differ in several choices at once, so a row does not show the effect of its "
        f"choice alone. {left_out}".strip(),
    )


def _values(label: StrategyLabel, kind: str) -> list[str]:
    """A strategy may mix methods, and makes one of each other choice."""
    texts = [chip.text.partition(" × ")[0] for chip in label.chips if chip.kind == kind]
    return texts or ([OTHERWISE[kind]] if kind in OTHERWISE else [])
