"""Iterations of strategies one above the other on one time axis."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from autosync.api.http.charts.axes import Scale, across, plain, shortened
from autosync.api.http.charts.chart import Chart, Drawing, bytes_in_words, drawings, milliseconds
from autosync.api.http.charts.svg_elements import line, rectangle, text_at
from autosync.api.views.timeline_schemas import TimelineIteration, TimelineMessage
from autosync.simulator.timeline.iteration_trace import DealInterval

LANES = {
    "gradient": "gradients",
    "value": "new values",
    "gather": "gathered while idle",
    "push": "push",
    "pull": "pull",
    "local_reduce": "reduce in node",
    "local_broadcast": "broadcast in node",
    "deal": "samples dealt",
}
WIDTH, LEFT, LANE, GAP = 1036, 124, 24, 40
LISTED = 60
PHASES = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("update", "update"),
    ("wait", "waiting for messages"),
)
DEALT = (("deal", LANES["deal"]),)


@dataclass(frozen=True, slots=True)
class TimelinePanel:
    """One iteration under its title."""

    title: str
    iteration: TimelineIteration


def timeline_chart(
    name: str,
    title: str,
    note: str,
    panels: Sequence[TimelinePanel],
    limit_seconds: float | None,
    end_seconds: float = 0.0,
    footnote: str = "",
) -> Chart:
    """end_seconds: the axis goes at least so far, so that two charts compare."""
    end = max(end_seconds, *(last_second(panel.iteration) for panel in panels))
    begin = min(0.0, *(first_second(panel.iteration) for panel in panels))

    def draw(width: int) -> Drawing:
        x = Scale(begin * 1e3, end * 1e3 * 1.01, LEFT, width - 12)
        parts: list[Markup] = []
        top = 0.0
        for panel in panels:
            lanes = _lanes(panel.iteration)
            first, bottom = top + GAP, top + GAP + LANE * len(lanes)
            step = panel.iteration.step_seconds
            parts.append(
                text_at(f"{panel.title}: {milliseconds(step)}", 0, top + 16, class_="panel-name")
            )
            parts += across(x, first, bottom, plain)
            parts += _bars(panel.iteration, lanes, x, first)
            parts.append(_rule(x.at(step * 1e3), first, bottom, "rule"))
            if limit_seconds is not None:
                at = x.at(limit_seconds * 1e3)
                parts.append(_rule(at, first, bottom, "rule limit"))
                parts.append(text_at("limit", at, first - 5, "middle", "rule-name"))
            top = bottom + 26
        parts.append(text_at("ms", width - 10, top - 12, "end"))
        return Drawing(width, top + 4, tuple(parts))

    words = "; ".join(f"{p.title}: {milliseconds(p.iteration.step_seconds)}" for p in panels)
    return Chart(
        name,
        title,
        note,
        words,
        drawings(draw, words, WIDTH, narrow=False),
        ("Iteration", "What", "Size", "Begins", "There at"),
        tuple(row for panel in panels for row in _table(panel)),
        (*PHASES, *DEALT) if any(panel.iteration.deals for panel in panels) else PHASES,
        " ".join(
            (
                "Thin: issued, behind others; thick: its channel works for it; dashed: the "
                "iteration ends; the line named limit: no strategy can end it before.",
                footnote,
            )
        ).strip(),
    )


def last_second(iteration: TimelineIteration) -> float:
    """When the last of it ends."""
    compute = (each.stop_seconds for each in iteration.compute)
    messages = (each.arrived_seconds for each in iteration.messages or ())
    return max((*compute, *messages, *(each.arrived_seconds for each in iteration.deals)))


def first_second(iteration: TimelineIteration) -> float:
    """When the slowest rank begins; before 0 where clocks of hosts are apart."""
    rank = slowest_rank(iteration)
    return min(each.start_seconds for each in iteration.compute if each.rank == rank)


def slowest_rank(iteration: TimelineIteration) -> int:
    """The rank that computes longest: the others wait for it."""
    busy: dict[int, float] = {}
    for each in iteration.compute:
        seconds = 0.0 if each.phase == "wait" else each.stop_seconds - each.start_seconds
        busy[each.rank] = busy.get(each.rank, 0.0) + seconds
    most = max(busy.values())
    return next(rank for rank, seconds in busy.items() if seconds > most - 1e-9)


def _lanes(iteration: TimelineIteration) -> list[str]:
    used = {message.channel for message in iteration.messages or ()}
    used |= {"deal"} if iteration.deals else set()
    return ["compute", *(name for name in LANES if name in used)]


def _bars(iteration: TimelineIteration, lanes: list[str], x: Scale, first: float) -> list[Markup]:
    rank = slowest_rank(iteration)
    parts = [
        text_at(shortened(LANES.get(lane, lane), LEFT), LEFT - 8, first + LANE * i + 16, "end")
        for i, lane in enumerate(lanes)
    ]
    for each in iteration.compute:
        if each.rank == rank:
            seconds = each.stop_seconds - each.start_seconds
            tip = f"{each.phase}, rank {rank}: {milliseconds(seconds)}"
            start = x.at(each.start_seconds * 1e3)
            wide = x.at(each.stop_seconds * 1e3) - start
            parts.append(rectangle(start, first + 4, wide, LANE - 8, f"phase {each.phase}", tip))
    for message in iteration.messages or ():
        top = first + LANE * lanes.index(message.channel)
        parts += _message(message, x, top)
    for deal in iteration.deals:
        parts.append(_deal(deal, x, first + LANE * lanes.index("deal")))
    return parts


def _deal(deal: DealInterval, x: Scale, top: float) -> Markup:
    issued, arrived = x.at(deal.issued_seconds * 1e3), x.at(deal.arrived_seconds * 1e3)
    tip = (
        f"{_operation(deal)} at a placed module, {bytes_in_words(deal.wire_bytes)} of all ranks: "
        f"from {milliseconds(deal.issued_seconds)} to {milliseconds(deal.arrived_seconds)}"
    )
    return rectangle(issued, top + 4, arrived - issued, LANE - 8, "lane deal", tip)


def _message(message: TimelineMessage, x: Scale, top: float) -> list[Markup]:
    """A thin line from issue to its turn, a bar from there to its arrival."""
    kind = f"lane {message.channel.replace('_', '-')}"
    issued, turn, arrived = (
        x.at(seconds * 1e3)
        for seconds in (message.issued_seconds, message.turn_seconds, message.arrived_seconds)
    )
    tip = (
        f"message {message.message}, {_operation(message)}, {bytes_in_words(message.wire_bytes)}: "
        f"issued at {milliseconds(message.issued_seconds)}, there at "
        f"{milliseconds(message.arrived_seconds)}"
    )
    thin = [rectangle(issued, top + LANE - 4, turn - issued, 2, kind)] if turn > issued else []
    return [*thin, rectangle(turn, top + 4, arrived - turn, LANE - 8, kind, tip)]


def _rule(x: float, top: float, bottom: float, class_: str) -> Markup:
    return line(x, top, x, bottom, class_)


def _operation(message: TimelineMessage | DealInterval) -> str:
    return message.operation.replace("_", "-")


def _table(panel: TimelinePanel) -> list[tuple[str, ...]]:
    """Compute of the slowest rank, then messages and deals by their issue; the first of many."""
    rank = slowest_rank(panel.iteration)
    rows: list[tuple[str, ...]] = [
        (
            panel.title,
            each.phase,
            "",
            milliseconds(each.start_seconds),
            milliseconds(each.stop_seconds),
        )
        for each in panel.iteration.compute
        if each.rank == rank
    ]
    sent = (*(panel.iteration.messages or ()), *panel.iteration.deals)
    rows += [
        (
            panel.title,
            f"{_operation(each)}{' of samples' if isinstance(each, DealInterval) else ''}",
            bytes_in_words(each.wire_bytes),
            milliseconds(each.issued_seconds),
            milliseconds(each.arrived_seconds),
        )
        for each in sorted(sent, key=lambda each: each.issued_seconds)
    ]
    left = len(rows) - LISTED
    return rows[:LISTED] + ([(panel.title, f"and {left} more", "", "", "")] if left > 0 else [])
