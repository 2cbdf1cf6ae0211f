"""Charts of one strategy or of two: timelines on one axis, bytes by NIC, memory."""

import math
from collections.abc import Sequence

from autosync.api.views.charts import Amounts, Axis, Chart, Plot, Point, Rule, Series, bars_chart
from autosync.api.views.dashboard.strategy_accounts import StrategyAccount
from autosync.api.views.timeline_schemas import TimelineIteration, TimelineMessage
from autosync.simulator.timeline.iteration_trace import DealInterval
from autosync.units import bytes_in_words, fraction_in_words, milliseconds

LANES = {
    "gradient": "gradients",
    "value": "new values",
    "gather": "all-gathers on idle links",
    "push": "push",
    "pull": "pull",
    "local_reduce": "reduce in node",
    "local_broadcast": "broadcast in node",
    "deal": "samples dealt",
}
PHASES = {
    "forward": "forward",
    "backward": "backward",
    "update": "update",
    "wait": "waiting for messages",
}
LISTED = 60
"""Rows of a timeline's table, for each iteration."""
BAR, QUEUED = 16, 3
"""Pixels: a message that its channel sends, and one that waits behind others."""


def account_charts(accounts: Sequence[StrategyAccount]) -> list[Chart]:
    """Of one strategy, or of two that are compared."""
    return [*timeline_charts(accounts), *_bytes(accounts), _memory(accounts)]


def timeline_charts(accounts: Sequence[StrategyAccount]) -> list[Chart]:
    """The measured iterations one above the other, and the predicted ones, on one axis."""
    of = [(_name(each), each.timeline) for each in accounts]
    limit = accounts[0].shown_limit_seconds
    predicted = [(f"{name}, predicted", timeline.predicted) for name, timeline in of]
    measured = [(f"{name}, measured", t.measured) for name, t in of if t.measured]
    shown = [iteration for _, iteration in (*predicted, *measured)]
    ends = min(0.0, *map(_first_second, shown)), max(map(_last_second, shown))
    charts = []
    if measured:
        note = "one iteration from the start of forward, and the forward pass after it"
        title = "Measured timeline"
        charts.append(
            timeline_chart("timeline", title, note, measured, limit, ends, _clocks(accounts))
        )
    notes = []
    if missing := [name for name, timeline in of if not timeline.measured]:
        notes.append(
            f"No trial of {' and '.join(missing)} recorded its timeline: the finalists' and DDP's "
            "first repeats do, where an update has one batch."
        )
    if any(timeline.measured and timeline.measured.deals for _, timeline in of):
        notes.append("Predicted, samples are dealt within the compute of placed modules.")
    note = "the same iterations as the timeline simulator predicts them, on the same axis"
    name, title = "predicted-timeline", "Predicted timeline"
    charts.append(timeline_chart(name, title, note, predicted, limit, ends, " ".join(notes)))
    return charts


def timeline_chart(
    name: str,
    title: str,
    note: str,
    panels: Sequence[tuple[str, TimelineIteration]],
    limit_seconds: float | None,
    ends_seconds: tuple[float, float],
    footnote: str = "",
) -> Chart:
    """panels: iterations under their titles. ends_seconds: of the axis, which two charts that are
    compared share."""
    titles = [f"{title}: {milliseconds(panel.step_seconds)}" for title, panel in panels]
    x = Axis("ms", "ms", low=ends_seconds[0] * 1e3, high=ends_seconds[1] * 1.01e3)
    how = (
        "Thin: issued, behind others; thick: its channel sends it; dashed: the iteration ends; the "
        "line named limit: no strategy can end it before."
    )
    return Chart(
        name,
        title,
        note,
        "; ".join(titles),
        tuple(
            _panel(title, iteration, x, limit_seconds)
            for title, (_, iteration) in zip(titles, panels, strict=True)
        ),
        ("Iteration", "What", "Size", "Begins", "Ends"),
        tuple(row for panel in panels for row in _table(*panel)),
        f"{how} {footnote}".strip(),
    )


def _panel(title: str, iteration: TimelineIteration, x: Axis, limit_seconds: float | None) -> Plot:
    used = {message.channel for message in iteration.messages or ()}
    used |= {"deal"} if iteration.deals else set()
    lanes = [name for name in LANES if name in used]
    rules = [Rule("x", iteration.step_seconds * 1e3, "")]
    if limit_seconds is not None:
        rules.append(Rule("x", limit_seconds * 1e3, "limit"))
    series = _compute(iteration)
    for row, lane in enumerate(lanes, 1):
        series += _lane(iteration, lane, row)
    names = ("compute", *(LANES[lane] for lane in lanes))
    return Plot(x, Axis(categories=names), tuple(series), tuple(rules), title, wide=True)


def _compute(iteration: TimelineIteration) -> list[Series]:
    """Of the slowest rank, a series for each phase."""
    rank = _slowest_rank(iteration)
    bars: dict[str, list[Point]] = {phase: [] for phase in PHASES}
    for each in iteration.compute:
        if each.rank == rank:
            span = each.start_seconds * 1e3, each.stop_seconds * 1e3
            taken = milliseconds(each.stop_seconds - each.start_seconds)
            bars[each.phase].append((span, 0, f"{each.phase}, rank {rank}: {taken}"))
    return [
        Series(PHASES[phase], f"phase-{phase}", "bars", tuple(points), BAR)
        for phase, points in bars.items()
        if points
    ]


def _lane(iteration: TimelineIteration, lane: str, row: int) -> list[Series]:
    """Messages of one channel: a thin bar from issue to their turn, a bar until they arrive."""
    queued: list[Point] = []
    sent: list[Point] = []
    for each in iteration.messages or ():
        if each.channel == lane:
            issued, turn, arrived = (
                seconds * 1e3
                for seconds in (each.issued_seconds, each.turn_seconds, each.arrived_seconds)
            )
            words = (
                f"message {each.message}, {_operation(each)}, {bytes_in_words(each.wire_bytes)}: "
                f"issued at {issued:.2f} ms, arrived at {arrived:.2f} ms"
            )
            if turn > issued:
                queued.append(((issued, turn), row + 0.4, words))
            sent.append(((turn, arrived), row, words))
    for deal in iteration.deals if lane == "deal" else ():
        issued, arrived = deal.issued_seconds * 1e3, deal.arrived_seconds * 1e3
        words = (
            f"{_operation(deal)} at a placed module, {bytes_in_words(deal.wire_bytes)} of all "
            f"ranks: from {issued:.2f} to {arrived:.2f} ms"
        )
        sent.append(((issued, arrived), row, words))
    colour = f"lane-{lane.replace('_', '-')}"
    thin = [Series("", colour, "bars", tuple(queued), QUEUED)] if queued else []
    return [*thin, Series(LANES[lane], colour, "bars", tuple(sent), BAR)]


def _last_second(iteration: TimelineIteration) -> float:
    compute = (each.stop_seconds for each in iteration.compute)
    messages = (each.arrived_seconds for each in iteration.messages or ())
    return max((*compute, *messages, *(each.arrived_seconds for each in iteration.deals)))


def _first_second(iteration: TimelineIteration) -> float:
    """When the slowest rank begins; before 0 where clocks of hosts are apart."""
    rank = _slowest_rank(iteration)
    return min(each.start_seconds for each in iteration.compute if each.rank == rank)


def _slowest_rank(iteration: TimelineIteration) -> int:
    """The rank that computes longest: the others wait for it."""
    busy: dict[int, float] = {}
    for each in iteration.compute:
        seconds = 0.0 if each.phase == "wait" else each.stop_seconds - each.start_seconds
        busy[each.rank] = busy.get(each.rank, 0.0) + seconds
    most = max(busy.values())
    return next(rank for rank, seconds in busy.items() if seconds > most - 1e-9)


def _operation(message: TimelineMessage | DealInterval) -> str:
    return message.operation.replace("_", "-")


def _table(title: str, iteration: TimelineIteration) -> list[tuple[str, ...]]:
    """Compute of the slowest rank, then messages and deals by their issue; the first of many."""
    rank = _slowest_rank(iteration)
    rows: list[tuple[str, ...]] = [
        (title, each.phase, "", milliseconds(each.start_seconds), milliseconds(each.stop_seconds))
        for each in iteration.compute
        if each.rank == rank
    ]
    sent = (*(iteration.messages or ()), *iteration.deals)
    rows += [
        (
            title,
            f"{_operation(each)}{' of samples' if isinstance(each, DealInterval) else ''}",
            bytes_in_words(each.wire_bytes),
            milliseconds(each.issued_seconds),
            milliseconds(each.arrived_seconds),
        )
        for each in sorted(sent, key=lambda each: each.issued_seconds)
    ]
    left = len(rows) - LISTED
    return rows[:LISTED] + ([(title, f"and {left} more", "", "", "")] if left > 0 else [])


def _clocks(accounts: Sequence[StrategyAccount]) -> str:
    words = []
    if any(a.timeline.measured and a.timeline.measured.deals for a in accounts):
        words.append(
            "Samples dealt: activations and their gradients at the borders of placed modules, and "
            "counts of samples before them; compute waits meanwhile."
        )
    if any(a.timeline.measured and not a.timeline.measured.messages for a in accounts):
        words.append(
            "torch's DDP does not say when its messages travel, nor when backward waits for them."
        )
    if any(a.timeline.clock == "by host" for a in accounts):
        words.append(
            "Hosts have clocks of their own: their times are aligned at each host's latest "
            "forward start."
        )
    return " ".join(words)


def _bytes(accounts: Sequence[StrategyAccount]) -> list[Chart]:
    """Nothing where no trial counted them."""
    if not any(account.sent_bytes for account in accounts):
        return []
    rows = [
        Amounts(
            node,
            tuple(a.sent_bytes[place] if place < len(a.sent_bytes) else None for a in accounts),
        )
        for place, node in enumerate(accounts[0].nodes)
    ]
    note = "sent in one iteration of a trial, as counted; the busiest one holds back the others"
    scale = accounts[0].byte_scale
    moved = (
        f"The trial moved {fraction_in_words(scale)} of the model's bytes. " if scale < 1 else ""
    )
    footnote = f"{moved}Headers and acknowledgements are counted, too."
    names = [_name(account) for account in accounts]
    return [bars_chart("nics", "Bytes by NIC", note, names, rows, footnote=footnote)]


def _memory(accounts: Sequence[StrategyAccount]) -> Chart:
    """The limit is the smallest device's, where its memory is stated."""
    first = accounts[0].prediction
    rows = [
        Amounts(f"rank {rank}", tuple(a.prediction.peak_memory_bytes[rank] for a in accounts))
        for rank in range(len(first.peak_memory_bytes))
    ]
    device = min(first.device_memory_bytes)
    note = "estimated peak of each device: parameters, gradients, optimizer, buffers, activations"
    line = f"The line: {bytes_in_words(device)} of the smallest device. "
    stated = math.isfinite(device)
    return bars_chart(
        "memory",
        "Memory",
        note,
        [_name(account) for account in accounts],
        rows,
        device if stated else None,
        f"{line if stated else ''}An estimate that adds up what the documents state.",
    )


def _name(account: StrategyAccount) -> str:
    return "DDP" if account.is_ddp else account.label.whole
