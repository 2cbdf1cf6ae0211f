"""A tuning's figures as charts."""

import math
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from autosync.api.http.charts.accuracy_charts import (
    PredictedPoint,
    prediction_chart,
    rounds_chart,
)
from autosync.api.http.charts.bars_chart import Amounts, bars_chart
from autosync.api.http.charts.chart import Chart, bytes_in_words
from autosync.api.http.charts.convergence_chart import ConvergencePoint, convergence_chart
from autosync.api.http.charts.interval_chart import SpeedupInterval, interval_chart
from autosync.api.http.charts.timeline_chart import (
    TimelinePanel,
    last_second,
    timeline_chart,
)
from autosync.api.views.dashboard.domain_limits import limit_of
from autosync.api.views.dashboard.strategy_accounts import StrategyAccount
from autosync.api.views.dashboard.strategy_labels import strategy_labels
from autosync.api.views.dashboard.trial_views import (
    TrialPoint,
    best_so_far,
    confirmed_speedups,
    ddp_seconds,
    median_by_strategy,
    median_seconds,
    pairs_by_round,
    trial_points,
)
from autosync.api.views.rankings import baseline_strategy, ddp_strategy
from autosync.api.views.schemas import Tuning, what_happened
from autosync.search.loop.outcome import DDP
from autosync.simulator.limit import Limit

NAMED = 400
"""Strategies whose names a chart tells; more of them stay nameless dots."""
SERIES = ("first", "second")


def tuning_charts(session: Session, tuning: Tuning) -> tuple[list[Chart], Limit]:
    """Those that have something to show, and the limit that is a line in each."""
    points = trial_points(session, tuning.id)
    limit = limit_of(session, tuning.id)
    if not points:
        return [], limit
    ddp = ddp_seconds(points)
    charts = [
        convergence_chart(convergence_points(points), ddp, limit.seconds),
        _prediction(session, tuning, points, limit.seconds),
    ]
    if (confirmation := _confirmation(session, tuning, points, limit.seconds)) is not None:
        charts.append(confirmation)
    if rounds := pairs_by_round(points):
        charts.append(rounds_chart(rounds))
    return charts, limit


def _confirmation(
    session: Session, tuning: Tuning, points: Sequence[TrialPoint], limit_seconds: float
) -> Chart | None:
    """Finalists over the baseline, which is another design where DDP's trials failed. None before a
    repeat has both."""
    base = baseline_strategy(session, tuning.id)
    confirmed = [] if base is None else confirmed_speedups(points, base.strategy_id)
    if base is None or not confirmed:
        return None
    names = strategy_labels(session, [each.strategy_id for each in confirmed])
    answer = tuning.result.strategy_id if tuning.result else ""
    intervals = [
        SpeedupInterval(
            names[each.strategy_id].whole,
            each.low,
            each.median,
            each.high,
            each.repeats,
            each.strategy_id == answer,
        )
        for each in confirmed
    ]
    seconds = median_seconds(each for each in points if each.strategy_id == base.strategy_id)
    limit = seconds / limit_seconds if seconds else None
    if base.origin == DDP:
        return interval_chart(intervals, limit, "DDP")
    note = f"Compared with {base.origin}: torch's DDP {_what_ddp_did(session, tuning)}."
    return interval_chart(intervals, limit, base.origin, note)


def _what_ddp_did(session: Session, tuning: Tuning) -> str:
    """Also before there is an answer."""
    ddp = ddp_strategy(session, tuning.id)
    return what_happened(ddp.error if ddp else None)


def convergence_points(points: Sequence[TrialPoint]) -> list[ConvergencePoint]:
    return [
        ConvergencePoint(point.position + 1, point.phase, point.step_seconds, best, point.is_ddp)
        for point, best in zip(points, best_so_far(points), strict=True)
    ]


def _prediction(
    session: Session, tuning: Tuning, points: Sequence[TrialPoint], limit_seconds: float
) -> Chart:
    medians = median_by_strategy(points)
    first = {point.strategy_id: point for point in reversed(points)}
    names = strategy_labels(session, list(medians)[:NAMED])
    version = "" if tuning.simulator_version is None else f" (version {tuning.simulator_version})"
    return prediction_chart(
        [
            PredictedPoint(
                names[key].whole if key in names else key[:6],
                first[key].predicted_seconds,
                seconds,
                first[key].is_ddp,
            )
            for key, seconds in medians.items()
        ],
        limit_seconds,
        f"{tuning.simulator}{version}",
    )


def account_charts(accounts: Sequence[StrategyAccount]) -> list[Chart]:
    """Timelines on one axis, bytes by NIC and memory of one strategy or two."""
    return [*timeline_charts(accounts), *_bytes(accounts), _memory(accounts)]


def timeline_charts(accounts: Sequence[StrategyAccount]) -> list[Chart]:
    """The measured iterations one above the other, and the predicted ones, on one axis."""
    of = [(_name(each), each.timeline) for each in accounts]
    limit = accounts[0].prediction.limit_seconds
    iterations = [t.predicted for _, t in of] + [t.measured for _, t in of if t.measured]
    end = max(last_second(each) for each in iterations)
    measured = [
        TimelinePanel(f"{name}, measured", timeline.measured)
        for name, timeline in of
        if timeline.measured
    ]
    charts = []
    if measured:
        note = "one iteration from the start of forward, and the forward pass after it"
        charts.append(
            timeline_chart(
                "timeline", "Measured timeline", note, measured, limit, end, _clocks(accounts)
            )
        )
    missing = [name for name, timeline in of if not timeline.measured]
    notes = []
    if missing:
        notes.append(
            f"No trial of {' and '.join(missing)} recorded its timeline: the finalists' and DDP's "
            "first repeats do."
        )
    if any(timeline.measured and timeline.measured.deals for _, timeline in of):
        notes.append("Predicted, samples are dealt within the compute of placed modules.")
    charts.append(
        timeline_chart(
            "predicted-timeline",
            "Predicted timeline",
            "the same iterations as the timeline simulator plays them, on the same axis",
            [TimelinePanel(f"{name}, predicted", timeline.predicted) for name, timeline in of],
            limit,
            end,
            " ".join(notes),
        )
    )
    return charts


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
    nodes = accounts[0].nodes
    rows = [
        Amounts(node, tuple(_at(account.sent_bytes, place) for account in accounts))
        for place, node in enumerate(nodes)
    ]
    note = "sent in one iteration, as counted in a trial; the busiest one holds back the others"
    scale = accounts[0].byte_scale
    footnote = (
        f"Counted bytes divided by the byte scale, {scale:g}: headers and acknowledgements, which "
        f"do not scale, look {1 / scale:g} times as large."
        if scale < 1
        else ""
    )
    series = _series(accounts)
    return [
        bars_chart("nics", "Bytes by NIC", note, series, rows, bytes_in_words, footnote=footnote)
    ]


def _memory(accounts: Sequence[StrategyAccount]) -> Chart:
    """The limit is the smallest device's, where its memory is stated."""
    first = accounts[0].prediction
    rows = [
        Amounts(
            f"rank {rank}",
            tuple(account.prediction.peak_memory_bytes[rank] for account in accounts),
        )
        for rank in range(len(first.peak_memory_bytes))
    ]
    device = min(first.device_memory_bytes)
    note = "estimated peak of each device: parameters, gradients, optimizer, buffers, activations"
    stated = math.isfinite(device)
    line = f"The line: {bytes_in_words(device)} of the smallest device. " if stated else ""
    return bars_chart(
        "memory",
        "Memory",
        note,
        _series(accounts),
        rows,
        bytes_in_words,
        device if stated else None,
        f"{line}An estimate that adds up what the documents state.",
    )


def _series(accounts: Sequence[StrategyAccount]) -> list[tuple[str, str]]:
    return [(SERIES[place], _name(account)) for place, account in enumerate(accounts)]


def _name(account: StrategyAccount) -> str:
    return "DDP" if account.is_ddp else account.label.whole


def _at(values: Sequence[float], place: int) -> float | None:
    return values[place] if place < len(values) else None


def compared_convergence(session: Session, tunings: Sequence[Tuning]) -> list[Chart]:
    """Of each tuning that has trials, all on axes of the same seconds."""
    found = [(tuning, trial_points(session, tuning.id)) for tuning in tunings]
    seconds = [point.step_seconds for _, points in found for point in points]
    within = (min(seconds), max(seconds)) if seconds else ()
    charts = []
    for tuning, points in found:
        if points:
            limit = limit_of(session, tuning.id).seconds
            chart = convergence_chart(
                convergence_points(points), ddp_seconds(points), limit, within
            )
            title = f"{tuning.graph} on {tuning.cluster}, {tuning.id[:8]}"
            charts.append(replace(chart, name=f"convergence-{tuning.id[:8]}", title=title))
    return charts
