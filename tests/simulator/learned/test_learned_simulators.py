"""From scores to seconds, worked by hand."""

import numpy as np
import pytest

from autosync.simulator.learned.learned_simulators import UNTRIED_MARGIN, Calibration, calibrate


def test_calibration_follows_a_bent_curve_and_keeps_the_order() -> None:
    rng = np.random.default_rng(0)
    scores = np.sort(rng.uniform(-1, 1, 200))
    seconds = np.exp(2.0 + scores**3)
    found = calibrate(scores, seconds, np.ones(200, dtype=bool))
    fine = np.linspace(-2, 2, 1001)
    assert (np.diff(found.seconds(fine)) > 0).all()
    np.testing.assert_allclose(found.seconds(scores), seconds, rtol=0.05)


def test_calibration_keeps_the_order_where_trials_contradict_the_scores() -> None:
    scores = np.linspace(0, 1, 20)
    found = calibrate(scores, np.exp(-scores), np.ones(20, dtype=bool))
    assert (np.diff(found.seconds(scores)) > 0).all()


def test_the_interval_is_the_error_on_held_trials_alone() -> None:
    scores = np.repeat(np.arange(10.0), 10)
    held = np.arange(100) % 10 == 0
    seconds = np.exp(scores) * np.where(held, 1.5, 1.0)
    narrow = calibrate(scores, seconds, ~held)
    wide = calibrate(scores, seconds, held)
    assert narrow.margin < 0.1 < wide.margin


def test_a_few_trials_fit_the_level_only() -> None:
    found = calibrate(np.zeros(3), np.full(3, 2.0), np.ones(3, dtype=bool))
    assert found.seconds(np.array([0.0, 1.0])) == pytest.approx([2.0, 2.0 * np.e])
    assert found.margin == UNTRIED_MARGIN


def test_first_trials_move_the_level_that_other_domains_taught() -> None:
    """One trial that is far off is not believed alone, and does not widen the interval."""
    taught = Calibration(np.zeros(1), np.array([0.1]), 0.15)
    scores, off = np.zeros(7), np.exp(0.4)
    levels = []
    for count in (1, 2, 4, 7):
        left_out = np.ones(count, dtype=bool)
        found = calibrate(scores[:count], np.full(count, off), left_out, taught)
        levels.append(float(np.log(found.seconds(scores[:1])[0])))
        assert found.margin == taught.margin
    assert (np.diff([0.1, *levels, 0.4]) > 0).all()
    assert levels[0] < 0.25 < levels[-1]
