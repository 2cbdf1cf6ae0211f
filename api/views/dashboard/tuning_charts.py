"""Charts of a tuning's trials: convergence, accuracy of predictions, and the confirmation."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from autosync.api.db.tables import StrategySummaryRow
from autosync.api.views.bucket_curve import bucket_chart, bucket_curve
from autosync.api.views.charts import Axis, Chart, Plot, Rule, Series, in_reach
from autosync.api.views.dashboard.choice_chart import choice_chart, chosen_values
from autosync.api.views.dashboard.strategy_accounts import limit_of
from autosync.api.views.dashboard.strategy_labels import strategy_labels
from autosync.api.views.dashboard.trial_points import (
    RankedPairs,
    TrialPoint,
    best_so_far,
    measured_strategies,
    pairs_by_round,
    trial_points,
)
from autosync.api.views.rankings import (
    ConfirmedSpeedup,
    baseline_strategy,
    confirmed_speedups,
    ddp_strategy,
    measured_ddp_seconds,
)
from autosync.api.views.tuning_schemas import Tuning, what_happened
from autosync.search.loop.outcome import DDP
from autosync.simulator.limit import Limit
from autosync.units import counted, milliseconds

MOST_DOTS = 1000
"""Trials that are drawn: of more, the fastest and the slowest of every stretch."""
NAMED = 400
"""Strategies whose names a chart reads from their documents."""
LISTED = 25
"""Rows of the table of predictions."""


def tuning_charts(session: Session, tuning: Tuning) -> tuple[list[Chart], Limit]:
    """The charts that have something to show, and the limit that is a line in each."""
    points = trial_points(session, tuning.id)
    limit = limit_of(session, tuning.id)
    if not points:
        return [], limit
    measured, ddp = measured_strategies(session, tuning.id), measured_ddp_seconds(session, tuning)
    charts = [
        convergence_chart(points, limit.seconds, ddp),
        _predictions(session, tuning, measured, limit.seconds),
    ]
    if (confirmation := _confirmation(session, tuning, points, limit.seconds)) is not None:
        charts.append(confirmation)
    if rounds := pairs_by_round(points):
        charts.append(_rounds(rounds))
    if (buckets := bucket_chart(bucket_curve(session, tuning.id))) is not None:
        charts.insert(0, buckets)
    medians = {each.strategy_id: each.step_seconds or 0.0 for each in measured}
    labels = strategy_labels(session, list(medians)[:NAMED])
    if values := chosen_values(labels, medians):
        left_out = f"Only the fastest {NAMED} count here." if len(medians) > NAMED else ""
        charts.append(choice_chart(values, ddp, left_out))
    return charts, limit


def convergence_chart(
    points: Sequence[TrialPoint], limit_seconds: float, ddp: float | None = None
) -> Chart:
    """Step time of every trial in the order they ran, and the best so far. points: at least one.
    ddp: its seconds as ranked, where it was measured."""
    best = best_so_far(points)
    changes = [i for i in range(len(best)) if not i or best[i] != best[i - 1]]
    measured = [point.step_seconds for point in points]
    known = [("DDP", ddp), ("limit", limit_seconds)]
    rules = [(name, seconds) for name, seconds in known if seconds is not None]
    drawn = [Rule("y", s * 1e3, name) for name, s in rules if in_reach(s, measured)]
    beyond = [f" {n} {milliseconds(s)}." for n, s in rules if not in_reach(s, measured)]
    shown = _thinned(points)
    steps = tuple(
        (points[i].position + 1, best[i] * 1e3, f"best so far: {milliseconds(best[i])}")
        for i in sorted({*changes, len(best) - 1})
    )
    told = "".join(f", {name} {milliseconds(seconds)}" for name, seconds in rules)
    return Chart(
        "convergence",
        "Convergence",
        "step time of every trial, and the best so far by medians",
        f"{counted(len(points), 'trial')}; the best went from {milliseconds(best[0])} to "
        f"{milliseconds(best[-1])}{told}",
        (
            Plot(
                Axis("trial"),
                Axis("ms an iteration", "ms"),
                (
                    _trials("search", "accent", [p for p in shown if p.phase == "search"]),
                    _trials("confirmation", "series-2", [p for p in shown if p.phase == "confirm"]),
                    Series("best so far", "good", "steps", steps),
                ),
                tuple(drawn),
            ),
        ),
        ("Trial", "Phase", "Best so far"),
        tuple(
            (str(points[i].position + 1), points[i].phase, milliseconds(best[i])) for i in changes
        ),
        "Repeats of the confirmation can raise the best." + "".join(beyond),
    )


def _trials(name: str, colour: str, points: Sequence[TrialPoint]) -> Series:
    return Series(
        name,
        colour,
        "dots",
        tuple(
            (
                point.position + 1,
                point.step_seconds * 1e3,
                f"trial {point.position + 1}: {milliseconds(point.step_seconds)}"
                + (", DDP" if point.is_ddp else ""),
            )
            for point in points
        ),
    )


def _thinned(points: Sequence[TrialPoint]) -> list[TrialPoint]:
    stretch = max(1, -(-2 * len(points) // MOST_DOTS))
    if stretch <= 2:
        return list(points)
    kept: list[TrialPoint] = []
    for first in range(0, len(points), stretch):
        part = sorted(points[first : first + stretch], key=lambda point: point.step_seconds)
        kept += {part[0], part[-1]}
    return kept


def _predictions(
    session: Session,
    tuning: Tuning,
    measured: Sequence[StrategySummaryRow],
    limit_seconds: float,
) -> Chart:
    """Predicted against measured; on the diagonal predictions are right. measured: at least one."""
    medians = {each.strategy_id: each.step_seconds or 0.0 for each in measured}
    origins = {each.strategy_id: each.origin for each in measured}
    names = strategy_labels(session, list(medians)[:NAMED])
    named = {key: names[key].whole if key in names else key[:6] for key in medians}
    predicted = {each.strategy_id: each.predicted_seconds for each in measured}
    both = [*medians.values(), *predicted.values()]
    low, high = min(both) * 1e3, max(both) * 1e3
    version = "" if tuning.simulator_version is None else f" (version {tuning.simulator_version})"

    def dots(ddp: bool) -> tuple[tuple[float, float, str], ...]:
        return tuple(
            (
                predicted[key] * 1e3,
                seconds * 1e3,
                f"{named[key]}: predicted {milliseconds(predicted[key])}, measured "
                f"{milliseconds(seconds)}",
            )
            for key, seconds in list(medians.items())[: MOST_DOTS if not ddp else None]
            if (origins[key] == DDP) == ddp
        )

    limit = Rule("y", limit_seconds * 1e3, "limit")
    return Chart(
        "accuracy",
        "Predicted and measured",
        f"on the line the {tuning.simulator}{version} simulator is right",
        f"Predicted and measured step time of {counted(len(medians), 'strategy', 'strategies')}",
        (
            Plot(
                Axis("predicted ms", "ms"),
                Axis("measured ms", "ms"),
                (
                    Series("strategies", "accent", "dots", dots(False)),
                    Series("DDP", "series-2", "rings", dots(True)),
                    Series("", "soft", "line", ((low, low, ""), (high, high, ""))),
                ),
                (limit,) if in_reach(limit_seconds, both) else (),
            ),
        ),
        ("Strategy", "Predicted", "Measured"),
        tuple(
            (named[key], milliseconds(predicted[key]), milliseconds(seconds))
            for key, seconds in list(medians.items())[:LISTED]
        ),
        f"The table has the fastest {LISTED} of {len(medians)}." if len(medians) > LISTED else "",
    )


def _rounds(rounds: Sequence[RankedPairs]) -> Chart:
    last = rounds[-1]
    bars = tuple(
        (place, each.right * 100, f"{each.right:.1%} of {counted(each.pairs, 'pair')}")
        for place, each in enumerate(rounds)
    )
    return Chart(
        "rounds",
        "Pairs ranked correctly",
        "of the strategies tried in each round of the search, by the predictions that chose them",
        f"In the last of {counted(len(rounds), 'round')} {last.right:.1%} of the pairs were ranked "
        "correctly",
        (
            Plot(
                Axis("round", categories=tuple(str(each.round + 1) for each in rounds)),
                Axis("pairs ranked correctly", "%", low=0.0, high=100.0),
                (Series("", "accent", "bars", bars),),
                (Rule("y", 50.0, "chance"),),
            ),
        ),
        ("Round", "Ranked correctly", "Pairs", "Strategies"),
        tuple(
            (str(r.round + 1), f"{r.right:.1%}", f"{r.pairs:,}", str(r.strategies)) for r in rounds
        ),
        "A search tries what it predicts to be fast, so these pairs are hard to rank.",
    )


def _confirmation(
    session: Session, tuning: Tuning, points: Sequence[TrialPoint], limit_seconds: float
) -> Chart | None:
    """Finalists over the baseline, which is another design where DDP's trials failed. None before a
    repeat has both."""
    base = baseline_strategy(session, tuning.id)
    if base is None:
        return None
    repeats = ((p.strategy_id, p.round, p.step_seconds) for p in points if p.phase == "confirm")
    by_strategy = confirmed_speedups(repeats, base.strategy_id)
    if not by_strategy:
        return None
    fastest_first = sorted(by_strategy, key=lambda key: -by_strategy[key].median)
    confirmed = [by_strategy[key] for key in fastest_first]
    labels = strategy_labels(session, fastest_first)
    names = [labels[key].whole for key in fastest_first]
    answer = tuning.result.strategy_id if tuning.result else ""
    is_answer = [key == answer for key in fastest_first]
    notes, baseline = [], "DDP"
    if base.origin != DDP:
        baseline, ddp = base.origin, ddp_strategy(session, tuning.id)
        happened = what_happened(ddp.error if ddp else None)
        notes.append(f"Compared with {baseline}: torch's DDP {happened}.")
    rules = [Rule("x", 1.0, baseline)]
    if base.step_seconds:
        limit = base.step_seconds / limit_seconds
        notes.append(f"The limit is {limit:.2f} times as fast as {baseline}.")
        if in_reach(limit, [1.0, *(value for each in confirmed for value in each.repeats)]):
            rules.append(Rule("x", limit, "limit"))
    return Chart(
        "confirmation",
        "Confirmation",
        f"speed-up over {baseline} in interleaved repeats",
        "; ".join(
            f"{name}: {each.median:.2f} times as fast as {baseline}, {each.low:.2f} to "
            f"{each.high:.2f}"
            for name, each in zip(names, confirmed, strict=True)
        ),
        (
            Plot(
                Axis(f"times as fast as {baseline}", "×"),
                Axis(categories=tuple(names)),
                _intervals(confirmed, is_answer),
                tuple(rules),
            ),
        ),
        ("Strategy", "Low", "Median", "High", "Repeats"),
        tuple(
            (name, f"{e.low:.3f}×", f"{e.median:.3f}×", f"{e.high:.3f}×", str(len(e.repeats)))
            for name, e in zip(names, confirmed, strict=True)
        ),
        " ".join(notes),
    )


def _intervals(
    confirmed: Sequence[ConfirmedSpeedup], is_answer: Sequence[bool]
) -> tuple[Series, ...]:
    rows = list(enumerate(confirmed))

    def bars(of_answer: bool) -> tuple[tuple[tuple[float, float], float, str], ...]:
        return tuple(
            ((e.low, e.high), row, f"{e.median:.2f}× ({e.low:.2f} to {e.high:.2f})")
            for row, e in rows
            if is_answer[row] == of_answer
        )

    medians = tuple((e.median, row, f"median {e.median:.3f}×") for row, e in rows)
    repeats = tuple((value, row, f"{value:.3f}×") for row, e in rows for value in e.repeats)
    return (
        Series("median", "ink", "strokes", medians),
        Series("a repeat", "soft", "dots", repeats),
        Series("the answer, percentiles 10 to 90", "interval-answer", "bars", bars(True), 12),
        Series("other finalists", "interval", "bars", bars(False), 12),
    )
