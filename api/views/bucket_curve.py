"""torch's DDP by the sizes of its buckets, predicted and measured; and its chart."""

import math

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.lookup import stored
from autosync.api.db.tables import StrategyRow, TuningRow
from autosync.api.views.charts import Axis, Chart, Plot, Point, Rule, Series
from autosync.api.views.rankings import ranked_strategies
from autosync.api.views.tuning_schemas import BucketCurve, BucketPoint, RankedStrategy
from autosync.documents import from_json
from autosync.exports.ddp import ddp_call, own_arguments
from autosync.search.loop.outcome import is_ddp
from autosync.search.space import Space
from autosync.strategy import Strategy
from autosync.torch_engine import DDP_BUCKET_BYTES
from autosync.units import MIB, counted, milliseconds

LISTS = 5
"""Lists of sizes in the chart: the fastest."""


def bucket_curve(session: Session, tuning_id: str) -> BucketCurve:
    """Raises NotFound where there is no such tuning."""
    tuning = stored(session, TuningRow, tuning_id, "tuning")
    if from_json(Space, tuning.space).only != "buckets":
        return BucketCurve(tuning_id=tuning_id, items=[])
    ranked = ranked_strategies(session, tuning_id).items
    query = select(StrategyRow.strategy_id, StrategyRow.document)
    ids = [row.strategy_id for row in ranked]
    documents = dict(session.execute(query.where(StrategyRow.strategy_id.in_(ids))).all())
    known = {row.strategy_id: from_json(Strategy, documents[row.strategy_id]) for row in ranked}
    points = [_point(row, known[row.strategy_id]) for row in ranked]
    points.sort(key=lambda each: each.bucket_cap_mb or math.inf)  # lists: the fastest first
    return BucketCurve(tuning_id=tuning_id, items=points)


def _point(row: RankedStrategy, strategy: Strategy) -> BucketPoint:
    arguments = own_arguments(strategy)
    sizes = arguments.get("bucket_cap_mb_list")
    return BucketPoint(
        strategy_id=row.strategy_id,
        bucket_cap_mb=None if sizes else arguments.get("bucket_cap_mb", DDP_BUCKET_BYTES / MIB),
        bucket_cap_mb_list=sizes,
        is_default=is_ddp(strategy),
        buckets=len({shard.group for choice in strategy.choices for shard in choice.shards}),
        predicted_seconds=row.predicted_seconds,
        low_seconds=row.low_seconds,
        high_seconds=row.high_seconds,
        step_seconds=row.step_seconds,
        spread=row.spread,
        speedup=row.speedup,
        confirmed=row.confirmed,
        error=row.error,
        code=ddp_call(arguments),
    )


def size_words(point: BucketPoint, unit: str = "") -> str:
    """`8`, `25 (default)`, or `7, 13, 42, 97`. unit: stands behind the numbers."""
    sizes = point.bucket_cap_mb_list or [point.bucket_cap_mb or 0.0]
    words = ", ".join(f"{each:g}" for each in sizes) + unit
    return words + (" (default)" if point.is_default else "")


def bucket_chart(curve: BucketCurve) -> Chart | None:
    """None before two sizes were measured."""
    sizes = [each for each in curve.items if each.bucket_cap_mb is not None]
    lists = [each for each in curve.items if each.bucket_cap_mb is None][:LISTS]
    shown = [each for each in (*sizes, *lists) if each.step_seconds is not None]
    measured = [each for each in shown if each.bucket_cap_mb is not None]
    if len(measured) < 2:
        return None
    places = {each.strategy_id: place for place, each in enumerate(shown)}
    names = [
        size_words(each) if each in measured else f"list {number - len(measured) + 1}"
        for number, each in enumerate(shown)
    ]
    best = min(shown, key=lambda each: each.step_seconds or 0.0)
    default = next((each for each in measured if each.is_default), None)
    rules = [Rule("y", (default.step_seconds or 0.0) * 1e3, "DDP's own sizes")] if default else []

    def line(points: list[BucketPoint], of: str) -> tuple[Point, ...]:
        return tuple(
            (
                places[each.strategy_id],
                getattr(each, of) * 1e3,
                f"{size_words(each, ' MiB')}, {counted(each.buckets, 'bucket')}: predicted "
                f"{milliseconds(each.predicted_seconds)}, measured "
                f"{milliseconds(each.step_seconds or 0.0)}",
            )
            for each in points
        )

    return Chart(
        "buckets",
        "Bucket sizes",
        "step time of torch's DDP by the size of its buckets",
        f"{len(measured)} sizes of buckets and {counted(len(shown) - len(measured), 'list')} of "
        f"sizes; {size_words(best, ' MiB')} is the fastest with "
        f"{milliseconds(best.step_seconds or 0.0)}",
        (
            Plot(
                Axis("bucket_cap_mb", categories=tuple(names)),
                Axis("ms an iteration", "ms"),
                (
                    Series("", "accent", "line", line(measured, "step_seconds")),
                    Series("measured", "accent", "dots", line(shown, "step_seconds")),
                    Series("predicted", "series-2", "rings", line(shown, "predicted_seconds")),
                ),
                tuple(rules),
            ),
        ),
        ("MiB", "Buckets", "Predicted", "Measured"),
        tuple(
            (
                size_words(each),
                str(each.buckets),
                milliseconds(each.predicted_seconds),
                milliseconds(each.step_seconds or 0.0),
            )
            for each in shown
        ),
        "A list has a size for each bucket (bucket_cap_mb_list of torch 2.13)." if lists else "",
    )
