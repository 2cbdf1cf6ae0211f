"""What charts are drawn of, and that they stay small."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.api.views import reports
from autosync.api.views.charts import STRETCHES, Amounts, OperationCost, bars_chart, model_chart
from autosync.api.views.dashboard.strategy_accounts import strategy_account
from autosync.api.views.dashboard.strategy_charts import timeline_chart, timeline_charts
from autosync.api.views.dashboard.trial_points import (
    TrialPoint,
    best_so_far,
    pairs_by_round,
    trial_points,
)
from autosync.api.views.dashboard.tuning_charts import MOST_DOTS, convergence_chart, tuning_charts
from autosync.api.views.rankings import confirmed_speedups
from autosync.api.views.timeline_schemas import TimelineIteration
from autosync.simulator.timeline.iteration_trace import ComputeInterval, DealInterval
from autosync.units import milliseconds
from tests.api.sample import Shown


def points(*trials: tuple[str, str, int, float]) -> list[TrialPoint]:
    """Of strategy, phase, round and seconds; what is predicted grows with the place."""
    return [
        TrialPoint(place, phase, number, strategy, seconds, float(place), strategy == "ddp")
        for place, (strategy, phase, number, seconds) in enumerate(trials)
    ]


def test_the_best_so_far_goes_by_medians_and_can_rise() -> None:
    trials = points(
        ("ddp", "search", 0, 10.0),
        ("lucky", "search", 0, 5.0),
        ("steady", "search", 0, 7.0),
        ("lucky", "confirm", 0, 9.0),  # the confirmation alone counts from here on
        ("steady", "confirm", 0, 6.5),
        ("ddp", "confirm", 0, 10.0),
    )
    assert best_so_far(trials) == [10.0, 5.0, 5.0, 7.0, 6.5, 6.5]


def test_the_repeats_that_chose_the_winner_count_in_no_chart() -> None:
    repeats = [("ddp", "confirm", place, seconds) for place, seconds in enumerate((1.0, 1.0, 3.0))]
    assert best_so_far(points(*repeats))[-1] == 2.0
    assert best_so_far(points(*repeats, ("ddp", "confirm", 3, 3.0)))[-1] == 3.0


def test_charts_show_the_seconds_of_the_ranking(shown: Shown) -> None:
    with shown.database.reading() as session:
        tuning = reports.tuning(session, shown.first)
        ranked = reports.ranked_strategies(session, shown.first).items
        charts = {chart.name: chart for chart in tuning_charts(session, tuning)[0]}
    measured = [row for row in ranked if row.step_seconds is not None]
    assert any(row.confirmed for row in measured)
    assert [row[1:] for row in charts["accuracy"].rows] == [
        (milliseconds(row.predicted_seconds), milliseconds(row.step_seconds)) for row in measured
    ]
    (ddp,) = (row for row in measured if row.is_ddp)
    assert f", DDP {milliseconds(ddp.step_seconds)}, limit " in charts["convergence"].words


def test_pairs_are_counted_within_a_round() -> None:
    trials = points(
        ("a", "search", 0, 1.0),
        ("b", "search", 0, 2.0),
        ("c", "search", 0, 1.5),
        ("d", "search", 1, 1.0),  # one alone has no pair
        ("e", "search", 2, 2.0),
        ("f", "search", 2, 1.0),
        ("f", "confirm", 0, 1.0),
    )
    found = pairs_by_round(trials)
    assert [(each.round, each.pairs) for each in found] == [(0, 3), (2, 1)]
    assert [each.right for each in found] == pytest.approx([2 / 3, 0.0])


def test_large_rounds_are_thinned_out() -> None:
    many = points(*((f"s{i}", "search", 0, 1.0 + i) for i in range(3000)))
    (found,) = pairs_by_round(many)
    assert (found.right, found.strategies, found.pairs) == (1.0, 3000, 500 * 499 // 2)


def test_speed_ups_are_over_the_baseline_whichever_it_is() -> None:
    confirmation = [
        ("known", 0, 6.0),
        ("found", 0, 4.0),
        ("found", 1, 3.0),
        ("known", 1, 6.0),
        ("late", 2, 1.0),  # no repeat in common
    ]
    ((name, only),) = confirmed_speedups(confirmation, "known").items()
    assert (name, only.repeats) == ("found", (2.0,))  # the first one chooses
    assert confirmed_speedups(confirmation, "ddp") == {}


def test_points_and_speedups_are_those_of_the_reports(shown: Shown) -> None:
    tuning_id = shown.first
    with shown.database.reading() as session:
        found = trial_points(session, tuning_id)
        result = reports.tuning(session, tuning_id).result
        trials = reports.trials(session, tuning_id).items
    assert result is not None
    assert [p.position for p in found] == [t.position for t in trials if t.step_seconds]
    assert {p.strategy_id for p in found if p.is_ddp} == {
        t.strategy_id for t in trials if t.origin == "ddp"
    }
    (base,) = {p.strategy_id for p in found if p.is_ddp}
    repeats = ((p.strategy_id, p.round, p.step_seconds) for p in found if p.phase == "confirm")
    answer = confirmed_speedups(repeats, base)[result.strategy_id]
    assert answer.median == result.speedup
    assert (answer.low, answer.high) == (result.speedup_low, result.speedup_high)
    assert np.median(answer.repeats) == pytest.approx(answer.median)


def placed_iteration() -> TimelineIteration:
    return TimelineIteration(
        step_seconds=0.01,
        compute=[
            ComputeInterval(0, "forward", 0.0, 0.002),
            ComputeInterval(0, "wait", 0.002, 0.003),
            ComputeInterval(0, "backward", 0.003, 0.009),
        ],
        messages=None,
        deals=[DealInterval("all_to_all", 4096, 0.002, 0.003)],
    )


def test_deals_are_drawn_in_a_lane_of_their_own_and_listed_as_messages() -> None:
    panels = [("placed, measured", placed_iteration())]
    chart = timeline_chart("timeline", "Measured timeline", "", panels, None, (0.0, 0.01))
    (plot,) = chart.plots
    assert plot.y.categories == ("compute", "samples dealt")
    (series,) = (each for each in plot.series if each.name == "samples dealt")
    ((span, lane, words),) = series.points
    assert (span, lane) == ((2.0, 3.0), 1)
    assert "all-to-all at a placed module, 4.1 kB of all ranks" in words
    listed = [row[1:] for row in chart.rows if "of samples" in row[1]]
    assert listed == [("all-to-all of samples", "4.1 kB", "2.00 ms", "3.00 ms")]
    plain = placed_iteration().model_copy(update={"deals": []})
    without = timeline_chart("timeline", "", "", [("plain", plain)], None, (0.0, 0.01))
    assert without.plots[0].y.categories == ("compute",)


def test_measured_and_predicted_timelines_share_their_axis(shown: Shown) -> None:
    """Where clocks of hosts are apart, what is measured may begin before 0."""
    with shown.database.reading() as session:
        account = strategy_account(session, shown.first)
    measured = account.timeline.measured
    assert measured is not None
    early = [replace(each, start_seconds=each.start_seconds - 1.0) for each in measured.compute]
    changed = {"measured": measured.model_copy(update={"compute": early})}
    timeline = account.timeline.model_copy(update=changed)
    charts = timeline_charts([replace(account, timeline=timeline)])
    assert [chart.name for chart in charts] == ["timeline", "predicted-timeline"]
    both, other = (chart.plots[0].x for chart in charts)
    assert both == other
    assert both.low is not None
    assert both.low < 0.0


def trials(seconds: list[float]) -> list[TrialPoint]:
    return [TrialPoint(i, "search", 0, f"s{i}", s, 1.0, False) for i, s in enumerate(seconds)]


def test_thousands_of_trials_stay_a_small_drawing() -> None:
    seconds = [1.0 + (i * 7919 % 2000) / 1e4 for i in range(2000)]
    chart = convergence_chart(trials(seconds), 0.9)
    dots = chart.plots[0].series[0].points
    assert len(dots) <= MOST_DOTS
    assert {min(seconds) * 1e3, max(seconds) * 1e3} <= {at for _, at, _ in dots}
    assert len(chart.rows) == 1, "only where the best changed"


def test_the_staircase_steps_where_the_best_changes() -> None:
    chart = convergence_chart(trials([3.0, 3.0, 2.0, 2.5]), 0.9)
    (best,) = (each for each in chart.plots[0].series if each.kind == "steps")
    assert [point[:2] for point in best.points] == [(1, 3000.0), (3, 2000.0), (4, 2000.0)]
    assert [row[2] for row in chart.rows] == ["3,000 ms", "2,000 ms"]


def test_a_large_model_and_many_rows_are_summed_up() -> None:
    chart = model_chart([OperationCost(f"o{i}", 1 / 1000, i) for i in range(1000)], "")
    assert [len(plot.series[0].points) for plot in chart.plots] == [STRETCHES] * 2
    rows = [Amounts(f"n{i}", (float(i), None)) for i in range(300)]
    bars = bars_chart("nics", "Bytes", "", ["ours", "DDP"], rows)
    assert max(bars.plots[0].y.categories) == "n299"
    assert [len(series.points) for series in bars.plots[0].series] == [16, 0]
    assert bars.footnote == "Drawn are the 16 largest of 300. The table has the first 256."
    few = bars_chart("nics", "Bytes", "", ["ours", "DDP"], rows[:16], footnote="Headers, too.")
    assert few.footnote == "Headers, too."
