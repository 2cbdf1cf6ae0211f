"""Charts of predictions: a job on more nodes, and collectives by size."""

from autosync.api.views.charts import Axis, Chart, Plot, Rule, Series
from autosync.api.views.schemas import CollectiveTable, ScaledJob, ScaledPoint
from autosync.units import counted, milliseconds, milliseconds_between, number_in_words


def scale_chart(job: ScaledJob) -> Chart:
    """Throughput and efficiency over numbers of nodes, with intervals and the knee."""
    points = job.points
    samples = [point.samples_per_second * point.step_seconds for point in points]  # of an update
    spans, dots, shares = [], [], []
    for place, (point, each) in enumerate(zip(points, samples, strict=True)):
        low, high = each / point.high_seconds, each / point.low_seconds
        nodes = counted(point.nodes, "node")
        words = f"{nodes}: {number_in_words(point.samples_per_second)} samples/s"
        between = f"{number_in_words(low)} to {number_in_words(high)}"
        spans.append((place, (low, high), f"{words}, {between}"))
        dots.append((place, point.samples_per_second, f"{words}, bound by {point.binding}"))
        share = f"{nodes}: {point.efficiency:.0%} of what its ranks would reach alone"
        shares.append((place, 100 * point.efficiency, share))
    counts = tuple(str(point.nodes) for point in points)
    knees = [place for place, point in enumerate(points) if point.nodes == job.knee_nodes]
    rules = tuple(Rule("x", place, "knee") for place in knees)
    priced = any(point.samples_per_dollar for point in points)
    return Chart(
        "scale",
        "On more nodes",
        "the batch of a replica stays; bars are where nine of ten measurements are expected",
        f"{number_in_words(points[0].samples_per_second)} samples a second on "
        f"{counted(points[0].nodes, 'node')}, "
        f"{number_in_words(points[-1].samples_per_second)} on {points[-1].nodes:,}",
        (
            Plot(
                Axis("nodes", categories=counts),
                Axis("samples/s", low=0.0),
                (
                    Series("predicted", "accent", "dots", tuple(dots)),
                    Series("nine of ten", "interval", "bars", tuple(spans), 16),
                ),
                rules,
            ),
            Plot(
                Axis("nodes", categories=counts),
                Axis("efficiency", "%", low=0.0, high=100.0),
                (Series("", "accent", "bars", tuple(shares), 16),),
                rules,
                title="Efficiency",
            ),
        ),
        (
            *("Nodes", "Ranks", "Step", "Between", "Samples/s", "Efficiency", "Bound by"),
            *(("Samples/$",) if priced else ()),
        ),
        tuple(
            (
                str(point.nodes),
                str(point.ranks),
                milliseconds(point.step_seconds),
                milliseconds_between(point.low_seconds, point.high_seconds),
                number_in_words(point.samples_per_second),
                f"{point.efficiency:.0%}",
                point.binding,
                *((_for_a_dollar(point),) if priced else ()),
            )
            for point in points
        ),
        "Every further node brings at least half of what the first brought."
        if job.knee_nodes is None
        else f"The knee: beyond {counted(job.knee_nodes, 'node')} a further one brings less than "
        "half of what the first brought.",
    )


def _for_a_dollar(point: ScaledPoint) -> str:
    """Samples, where all of its nodes have a price."""
    return "–" if point.samples_per_dollar is None else number_in_words(point.samples_per_dollar)


def collective_chart(table: CollectiveTable) -> Chart:
    """Bus bandwidth by the size of a message, with intervals."""
    spans, dots = [], []
    for place, row in enumerate(table.rows):
        rate = row.busbw_gbytes_per_second
        low, high = (rate * row.seconds / each for each in (row.high_seconds, row.low_seconds))
        words = f"{_size(row.size_bytes)}: {rate:.3g} GB/s"
        chosen = f", {row.algorithm} with {row.protocol}" if row.algorithm else ""
        spans.append((place, (low, high), f"{words}, {low:.3g} to {high:.3g}"))
        dots.append((place, rate, f"{words}{chosen}"))
    best = max(table.rows, key=lambda row: row.busbw_gbytes_per_second)
    name = table.operation.replace("_", "-")
    return Chart(
        "collectives",
        f"{name} as nccl-tests would measure it",
        f"{counted(table.ranks, 'rank')} on {counted(table.nodes, 'node')}, {table.backend}, "
        "nothing beside it; bars are where nine of ten measurements are expected",
        f"Bus bandwidth of {name}, {best.busbw_gbytes_per_second:.1f} GB/s at most",
        (
            Plot(
                Axis("size", categories=tuple(_size(row.size_bytes) for row in table.rows)),
                Axis("busbw GB/s", log=True),
                (
                    Series("predicted", "accent", "dots", tuple(dots)),
                    Series("nine of ten", "interval", "bars", tuple(spans), 12),
                ),
            ),
        ),
        (
            "Size",
            "Time",
            "Between",
            "algbw GB/s",
            "busbw GB/s",
            "Algorithm",
            "Protocol",
            "Bound by",
        ),
        tuple(
            (
                _size(row.size_bytes),
                _microseconds(row.seconds),
                f"{_microseconds(row.low_seconds)} to {_microseconds(row.high_seconds)}",
                f"{row.algbw_gbytes_per_second:.2f}",
                f"{row.busbw_gbytes_per_second:.2f}",
                row.algorithm or "–",
                row.protocol or "–",
                row.binding,
            )
            for row in table.rows
        ),
    )


def _size(size_bytes: float) -> str:
    """`32 MiB`, in powers of 1,024 as nccl-tests count; bytes where it is no multiple of one."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes / unit:.0f} {name}"
    return f"{size_bytes:,.0f} B"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"
