"""The curve of DDP's bucket sizes: its points, and its chart."""

from autosync.api.db import Database
from autosync.api.views import reports
from autosync.api.views.bucket_curve import bucket_chart, bucket_curve, size_words
from autosync.api.views.dashboard.strategy_labels import strategy_labels
from autosync.api.views.dashboard.tuning_charts import tuning_charts
from autosync.api.views.tuning_schemas import BucketCurve, BucketPoint
from autosync.search.space import SPACES
from tests.api.sample import Shown, finished, small_request


def test_points_are_those_of_the_ranking(sqlite: Database) -> None:
    tuning_id = finished(sqlite, small_request(space=SPACES["buckets"]))
    with sqlite.reading() as session:
        curve = bucket_curve(session, tuning_id)
        ranked = {
            row.strategy_id: row for row in reports.ranked_strategies(session, tuning_id).items
        }
        tuning = reports.tuning(session, tuning_id)
        charts, _ = tuning_charts(session, tuning)
        labels = strategy_labels(session, list(ranked))
    assert tuning.space == "buckets"
    assert {each.strategy_id for each in curve.items} == ranked.keys()
    for each in curve.items:
        row = ranked[each.strategy_id]
        assert each.predicted_seconds == row.predicted_seconds
        assert each.step_seconds == row.step_seconds
        assert each.is_default == row.is_ddp
        assert (labels[each.strategy_id].name == "DDP") == row.is_ddp
        assert each.buckets > 0
        assert "gradient_as_bucket_view=True" in each.code
    assert charts[0].name == "buckets"
    measured = [each for each in curve.items if each.step_seconds is not None]
    assert charts[0].plots[0].x.categories == tuple(map(size_words, measured))


def test_other_tunings_have_none(shown_sqlite: Shown) -> None:
    tuning_id = shown_sqlite.first
    with shown_sqlite.database.reading() as session:
        assert bucket_curve(session, tuning_id).items == []
        charts, _ = tuning_charts(session, reports.tuning(session, tuning_id))
    assert "buckets" not in {chart.name for chart in charts}


def point(sizes: float | list[float], seconds: float | None, own: bool = False) -> BucketPoint:
    is_list = isinstance(sizes, list)
    return BucketPoint(
        strategy_id=str(sizes),
        bucket_cap_mb=None if is_list else sizes,
        bucket_cap_mb_list=sizes if is_list else None,
        is_default=own,
        buckets=3,
        predicted_seconds=0.02,
        step_seconds=seconds,
        spread=None,
        speedup=None,
        confirmed=False,
        error=None if seconds else "timeout: no answer",
        code="",
    )


def test_the_chart_has_sizes_then_lists_and_what_failed_is_left_out() -> None:
    points = [point(1.0, 0.04), point(8.0, 0.01), point(25.0, 0.02, own=True), point(64.0, None)]
    chart = bucket_chart(BucketCurve(tuning_id="t", items=[*points, point([4.0, 16.0], 0.012)]))
    assert chart is not None
    (plot,) = chart.plots
    assert plot.x.categories == ("1", "8", "25 (default)", "list 1")
    assert [rule.at for rule in plot.rules] == [20.0]
    assert "8 MiB is the fastest with 10.0 ms" in chart.words
    assert [row[0] for row in chart.rows] == ["1", "8", "25 (default)", "4, 16"]
    line, dots, rings = plot.series
    assert [y for _, y, _ in line.points] == [40.0, 10.0, 20.0]
    assert len(dots.points) == len(rings.points) == 4
    assert dots.points[2][2].startswith("25 MiB (default), 3 buckets: predicted 20.0 ms")
    assert "and 1 list of sizes" in chart.words
    assert bucket_chart(BucketCurve(tuning_id="t", items=points[:1])) is None
