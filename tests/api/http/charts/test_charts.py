"""Charts hold what they are given, escape it, and stay small."""

import xml.etree.ElementTree as ElementTree

import pytest

from autosync.api.http.charts.axes import Scale, scale_of, shortened
from autosync.api.http.charts.bars_chart import Amounts, bars_chart
from autosync.api.http.charts.chart import Chart, bytes_in_words
from autosync.api.http.charts.cluster_picture import cluster_picture
from autosync.api.http.charts.convergence_chart import (
    MOST_DOTS,
    ConvergencePoint,
    convergence_chart,
    thinned,
)
from autosync.api.http.charts.interval_chart import SpeedupInterval, interval_chart
from autosync.api.http.charts.model_chart import STRETCHES, OperationCost, model_chart
from autosync.api.http.charts.timeline_chart import TimelinePanel, timeline_chart
from autosync.api.views.timeline_schemas import TimelineIteration
from autosync.simulator.timeline.iteration_trace import ComputeInterval, DealInterval
from tests.domains import grid_cluster


def parsed(chart: Chart) -> list[ElementTree.Element]:
    """Each drawing, as XML; raises where it is none."""
    return [ElementTree.fromstring(str(drawing)) for _, drawing in chart.drawings]


def test_ticks_are_round_and_within() -> None:
    assert Scale(0.0, 1.0, 0.0, 100.0).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert Scale(121.0, 155.0, 0.0, 1.0).ticks(4) == [130, 140, 150]
    assert scale_of([5.0, 5.0], 0, 1).ticks()
    assert scale_of([], 0, 1).ticks()
    assert scale_of([0.0], 0, 1).ticks()
    assert shortened("reduce-scatter", 60) == "reduce-s…"


def test_names_are_escaped_everywhere() -> None:
    name = "<script>&\"'"
    interval = SpeedupInterval(name, 1.0, 1.1, 1.2, (1.0, 1.1, 1.2), True)
    rows = [Amounts(name, (1.0, None))]
    series = [("first", name), ("second", "DDP")]
    charts = [
        interval_chart([interval], 1.5, name, name),
        bars_chart("memory", "Memory", "", series, rows, bytes_in_words, 2.0),
        model_chart([OperationCost(name, 1.0, 8)], ""),
    ]
    for chart in charts:
        for drawing in parsed(chart):
            assert not list(drawing.iter("script"))
        assert any(name in cell for row in chart.rows for cell in row)


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
    panel = TimelinePanel("placed, measured", placed_iteration())
    chart = timeline_chart("timeline", "Measured timeline", "", [panel], None)
    for drawing in parsed(chart):
        texts = [element.text for element in drawing.iter() if element.tag.endswith("text")]
        assert "samples dealt" in texts
        (bar,) = [e for e in drawing.iter() if e.get("class") == "lane deal"]
        told = "".join(bar.itertext())
        assert "all-to-all at a placed module, 4.1 kB of all ranks" in told
    listed = [row[1:] for row in chart.rows if "of samples" in row[1]]
    assert listed == [("all-to-all of samples", "4.1 kB", "2.00 ms", "3.00 ms")]
    plain = placed_iteration().model_copy(update={"deals": []})
    without = timeline_chart("timeline", "", "", [TimelinePanel("plain", plain)], None)
    assert "samples dealt" not in "".join(str(drawing) for _, drawing in without.drawings)
    assert ("deal", "samples dealt") in chart.keys
    assert ("deal", "samples dealt") not in without.keys


def test_thousands_of_trials_stay_a_small_drawing() -> None:
    points = [
        ConvergencePoint(i + 1, "search", 1.0 + (i * 7919 % 5000) / 1e4, 1.0, False)
        for i in range(5000)
    ]
    kept = thinned(points)
    assert len(kept) <= MOST_DOTS
    seconds = [point.step_seconds for point in points]
    assert {min(seconds), max(seconds)} <= {point.step_seconds for point in kept}
    chart = convergence_chart(points, 1.4, 0.9)
    assert sum(len(drawing) for _, drawing in chart.drawings) < 250_000
    assert len(chart.rows) == 1, "only where the best changed"


def test_the_staircase_steps_where_the_best_changes() -> None:
    best = [3.0, 3.0, 2.0, 2.0, 2.5]
    points = [ConvergencePoint(i, "search", 3.0, b, False) for i, b in enumerate(best)]
    chart = convergence_chart(points, None, None)
    assert [row[2] for row in chart.rows] == ["3000.0 ms", "2000.0 ms", "2500.0 ms"]


def test_a_large_model_and_a_large_cluster_are_summed_up() -> None:
    many = [OperationCost(f"o{i}", 1 / 1000, i) for i in range(1000)]
    for drawing in parsed(model_chart(many, "")):
        assert len(list(drawing.iter("rect"))) <= 2 * STRETCHES
    for nodes, boxes in ((4, 4), (64, 1)):
        chart = cluster_picture(grid_cluster(nodes))
        assert len(chart.rows) == nodes
        for drawing in parsed(chart):
            found = [each for each in drawing.iter("rect") if each.get("class") == "node"]
            assert len(found) == boxes
