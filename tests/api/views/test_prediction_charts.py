"""Charts of predictions: intervals, the knee, and the tables behind them."""

from autosync.api.views.dashboard.prediction_charts import collective_chart, scale_chart
from autosync.api.views.schemas import CollectiveRow, CollectiveTable, ScaledJob, ScaledPoint


def point(nodes: int, samples_per_second: float, dollars: float | None = None) -> ScaledPoint:
    return ScaledPoint(
        nodes=nodes,
        ranks=8 * nodes,
        step_seconds=0.1,
        low_seconds=0.08,
        high_seconds=0.2,
        samples_per_second=samples_per_second,
        efficiency=samples_per_second / (100 * nodes),
        binding="compute",
        usd_per_hour=dollars,
        samples_per_dollar=dollars and samples_per_second * 3600 / dollars,
    )


def test_scaling_shows_intervals_of_throughput_and_the_knee() -> None:
    job = ScaledJob(points=[point(1, 100), point(4, 350), point(8, 400)], knee_nodes=4, warnings=[])
    chart = scale_chart(job)
    predicted, interval = chart.plots[0].series
    assert [each[1] for each in predicted.points] == [100, 350, 400]
    assert interval.points[0][1] == (50, 125)  # samples of a step over its ends
    assert [(rule.at, rule.name) for rule in chart.plots[0].rules] == [(1, "knee")]
    assert "beyond 4 nodes" in chart.footnote
    assert chart.rows[1] == ("4", "32", "100.0 ms", "80.0 to 200.0 ms", "350", "88%", "compute")
    whole = ScaledJob(points=[point(1, 100, 3.6), point(2, 190, 7.2)], knee_nodes=None, warnings=[])
    assert scale_chart(whole).plots[0].rules == ()
    assert scale_chart(whole).columns[-1] == "Samples/$"
    assert scale_chart(whole).rows[0][-1] == "100,000"


def test_what_has_no_price_buys_no_number_of_samples() -> None:
    points = [point(1, 100, 3.6), point(2, 190)]
    chart = scale_chart(ScaledJob(points=points, knee_nodes=None, warnings=[]))
    assert [row[-1] for row in chart.rows] == ["100,000", "–"]


def test_collectives_show_bandwidth_by_size() -> None:
    rows = [
        CollectiveRow(
            size_bytes=size, seconds=seconds, low_seconds=seconds / 2, high_seconds=2 * seconds,
            algbw_gbytes_per_second=size / seconds / 1e9,
            busbw_gbytes_per_second=1.5 * size / seconds / 1e9, algorithm=name, protocol=name,
            binding="NICs",
        )
        for size, seconds, name in ((1000.0, 1e-5, ""), (2.0**20, 1e-4, "Ring"))
    ]  # fmt: skip
    table = CollectiveTable(
        operation="all_reduce", ranks=4, nodes=2, backend="nccl", rows=rows, warnings=[]
    )
    chart = collective_chart(table)
    (plot,) = chart.plots
    assert plot.x.categories == ("1,000 B", "1 MiB")
    assert plot.y.log
    predicted, interval = plot.series
    assert predicted.points[0][1] == 0.15
    assert interval.points[0][1] == (0.075, 0.3)
    assert chart.rows[0] == (
        "1,000 B", "10.0 us", "5.0 us to 20.0 us", "0.10", "0.15", "–", "–", "NICs"
    )  # fmt: skip
    assert chart.rows[1][-2:] == ("Ring", "NICs")


def test_one_node_and_slow_iterations_are_told_as_they_are() -> None:
    slow = point(1, 0.4).model_copy(update={"high_seconds": 0.4})
    chart = scale_chart(ScaledJob(points=[slow], knee_nodes=1, warnings=[]))
    assert chart.words.startswith("0.4 samples a second on 1 node, ")
    assert chart.footnote.startswith("The knee: beyond 1 node a further one")
    predicted, interval = chart.plots[0].series
    assert predicted.points[0][2] == "1 node: 0.4 samples/s, bound by compute"
    assert interval.points[0][2] == "1 node: 0.4 samples/s, 0.1 to 0.5"
    assert chart.rows[0][4] == "0.4"
