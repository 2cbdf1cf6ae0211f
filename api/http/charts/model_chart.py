"""Where a model's compute time and its gradients' bytes are, along its forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

from autosync.api.http.charts.axes import Scale, shortened
from autosync.api.http.charts.chart import Chart, Drawing, bytes_in_words, drawings
from autosync.api.http.charts.svg_elements import line, rectangle, text_at

WIDTH, HALF = 1036, 96
STRETCHES = 120
"""At most so many bars along the forward pass; operations in a row share one."""


@dataclass(frozen=True, slots=True)
class OperationCost:
    """share: of the compute of an iteration. size_bytes: of the gradients that are complete after
    its backward."""

    name: str
    share: float
    size_bytes: int


def model_chart(operations: Sequence[OperationCost], time_note: str) -> Chart:
    """Bars up: share of compute; bars down: bytes of gradients. time_note: whence the shares."""
    stretches = [
        operations[i * len(operations) // count : (i + 1) * len(operations) // count]
        for count in [min(STRETCHES, len(operations))]
        for i in range(count)
    ]
    summed = [
        OperationCost(
            part[0].name if len(part) == 1 else f"{part[0].name} to {part[-1].name}",
            sum(each.share for each in part),
            sum(each.size_bytes for each in part),
        )
        for part in stretches
    ]
    most_share = max(each.share for each in summed) or 1.0
    most_bytes = max(each.size_bytes for each in summed) or 1

    def draw(width: int) -> Drawing:
        x = Scale(0.0, float(len(summed)), 4, width - 4)
        wide, middle = (width - 8) / len(summed), 22 + HALF
        parts = [
            text_at(f"share of compute, up to {most_share:.1%}", 4, 14),
            text_at(
                shortened(f"bytes of gradients, up to {bytes_in_words(most_bytes)}", width),
                4,
                middle + HALF + 18,
            ),
        ]
        for place, each in enumerate(summed):
            up, down = HALF * each.share / most_share, HALF * each.size_bytes / most_bytes
            tip = f"{each.name}: {each.share:.1%} of compute, {bytes_in_words(each.size_bytes)}"
            left = x.at(place)
            if each.share:
                parts.append(rectangle(left, middle - up, wide * 0.85, up, "bar compute", tip))
            if each.size_bytes:
                parts.append(rectangle(left, middle, wide * 0.85, down, "bar bytes", tip))
        parts.append(line(4, middle, width - 4, middle, "axis"))
        parts.append(text_at("first", 4, middle + HALF + 34, class_="rule-name"))
        parts.append(text_at("last", width - 4, middle + HALF + 34, "end", "rule-name"))
        return Drawing(width, middle + HALF + 40, tuple(parts))

    words = f"Share of compute and bytes of gradients along {len(operations)} operations"
    largest = sorted(operations, key=lambda each: (-each.size_bytes, -each.share))[:20]
    return Chart(
        "model",
        "Where time and bytes are",
        f"operations in the order of the forward pass; {time_note}",
        words,
        drawings(draw, words, WIDTH),
        ("Operation", "Share of compute", "Gradients"),
        tuple((e.name, f"{e.share:.2%}", bytes_in_words(e.size_bytes)) for e in largest),
        (("compute", "compute"), ("bytes", "gradients")),
        f"The {len(largest)} with most bytes of {len(operations)}.",
    )
