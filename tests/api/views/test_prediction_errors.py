"""Between which times a tuning's strategies are expected, by how far its predictions were off."""

import random

import pytest

from autosync.api.db import Database
from autosync.api.views import reports
from autosync.api.views.prediction_errors import (
    FEWEST_MEASURED,
    errors_of,
    predicted_words,
    prediction_errors,
)
from tests.api.sample import finished, small_request


def test_the_ends_leave_a_twentieth_of_what_is_to_come_at_either() -> None:
    ratios = [1.0 + 0.01 * place for place in range(39)]
    random.Random(0).shuffle(ratios)
    assert errors_of(ratios[: FEWEST_MEASURED - 1]) is None
    few = errors_of(ratios[:FEWEST_MEASURED])
    assert few is not None
    assert (few.low, few.high) == (min(ratios[:19]), max(ratios[:19]))
    many = errors_of(ratios)
    assert many is not None
    assert (many.low, many.high, many.measured) == pytest.approx((1.01, 1.37, 39))


def test_nine_of_ten_are_inside() -> None:
    """Of ratios that are drawn alike, over many tunings."""
    rng, inside = random.Random(1), 0
    for _ in range(2000):
        ratios = [rng.lognormvariate(0.1, 0.2) for _ in range(25)]
        found = errors_of(ratios[:-1])
        assert found is not None
        inside += found.low <= ratios[-1] <= found.high
    assert 0.9 <= inside / 2000 < 0.94


def test_a_tuning_that_measured_enough_says_where_the_others_are_expected(
    sqlite: Database,
) -> None:
    tuning_id = finished(sqlite, small_request(budget=FEWEST_MEASURED + 3))
    few = finished(sqlite, small_request(budget=2))
    with sqlite.reading() as session:
        errors = prediction_errors(session, tuning_id)
        rows = reports.ranked_strategies(session, tuning_id).items
        trials = reports.trials(session, tuning_id).items
        unknown = reports.ranked_strategies(session, few).items
    assert errors is not None
    measured = [row for row in rows if row.step_seconds is not None]
    assert errors.measured == len(measured) >= FEWEST_MEASURED
    shown = [(row.predicted_seconds, row.low_seconds, row.high_seconds) for row in rows]
    shown += [(trial.predicted_seconds, trial.low_seconds, trial.high_seconds) for trial in trials]
    for predicted, low, high in shown:
        assert low == pytest.approx(errors.low * predicted)
        assert high == pytest.approx(errors.high * predicted)
    assert all(row.low_seconds is None for row in unknown)


def test_words_leave_out_an_interval_that_is_not_known() -> None:
    assert predicted_words(0.1237, 0.1182, 0.131) == "123.7 ms, 118.2 to 131.0 ms expected"
    assert predicted_words(0.1237, None, None) == "123.7 ms"
