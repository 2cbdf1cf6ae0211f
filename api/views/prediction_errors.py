"""How far a tuning's predictions were off, and so between which times its strategies are expected.

A tuning knows better than any constants how sure its predictions are: it has measured some of them.
"""

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.tables import StrategySummaryRow
from autosync.units import milliseconds, milliseconds_between

MOST_MEASURED = 1000
"""Strategies that are looked at, in the order of their ids: of more a random choice, since ids are
hashes."""
FEWEST_MEASURED = 19
"""Strategies without which the ends are not known: of n measurements and one to come, each place in
their order is as likely, so n + 1 must have a twentieth at either end."""


@dataclass(frozen=True, slots=True)
class PredictionErrors:
    """low, high: multiples of predicted seconds between which nine of ten measurements are
    expected. measured: strategies that say so."""

    low: float
    high: float
    measured: int


def prediction_errors(session: Session, tuning_id: str) -> PredictionErrors | None:
    """From the measured strategies of a tuning, by the predictions they were proposed with; None
    where they are fewer than FEWEST_MEASURED."""
    of = StrategySummaryRow
    query = (
        select(of.step_seconds, of.predicted_seconds)
        .where(of.tuning_id == tuning_id, of.step_seconds.is_not(None))
        .order_by(of.strategy_id)
        .limit(MOST_MEASURED)
    )
    both = session.execute(query).all()
    return errors_of([(measured or 0.0) / predicted for measured, predicted in both])


def errors_of(ratios: list[float]) -> PredictionErrors | None:
    """ratios: measured over predicted seconds, of each strategy."""
    if len(ratios) < FEWEST_MEASURED:
        return None
    ordered, beyond = sorted(ratios), (len(ratios) + 1) // 20
    return PredictionErrors(ordered[beyond - 1], ordered[-beyond], len(ratios))


def predicted_words(seconds: float, low_seconds: float | None, high_seconds: float | None) -> str:
    """`123.7 ms, 118.2 to 131.0 ms expected`."""
    if low_seconds is None or high_seconds is None:
        return milliseconds(seconds)
    return f"{milliseconds(seconds)}, {milliseconds_between(low_seconds, high_seconds)} expected"


def interval(errors: PredictionErrors | None, predicted_seconds: float) -> dict[str, float | None]:
    """The fields of an answer that has a prediction."""
    low, high = (errors.low, errors.high) if errors else (None, None)
    return {
        "low_seconds": low and low * predicted_seconds,
        "high_seconds": high and high * predicted_seconds,
    }
