"""What doubt does to a proposal's place."""

import numpy as np
import pytest

from autosync.search.loop.acquisition import expected_improvement, promise_of


def test_expected_improvement_is_the_mean_gain_of_draws() -> None:
    rng = np.random.default_rng(0)
    seconds, std = np.array([0.8, 1.0, 1.3]), np.array([0.02, 0.1, 0.4])
    drawn = seconds * np.exp(std * rng.normal(size=(400_000, 3)))
    expected = np.maximum(1.0 - drawn, 0.0).mean(axis=0)
    assert expected_improvement(seconds, std, 1.0) == pytest.approx(expected, rel=0.02)


def test_without_doubt_the_gain_is_the_difference() -> None:
    found = expected_improvement(np.array([0.75, 1.0, 2.0]), np.zeros(3), 1.0)
    assert found == pytest.approx([0.25, 0.0, 0.0], abs=1e-8)


def test_more_doubt_promises_more_unless_the_prediction_alone_counts() -> None:
    seconds, std = np.array([1.0, 1.0]), np.array([0.05, 0.2])
    assert promise_of(seconds, std, "prediction", 1.0).tolist() == [1.0, 1.0]
    for acquisition in ("lower_bound", "expected_improvement"):
        sure, unsure = promise_of(seconds, std, acquisition, 1.0)
        assert unsure < sure


def test_before_the_first_trial_the_fastest_predicted_is_to_be_beaten() -> None:
    seconds, std = np.array([1.0, 2.0]), np.full(2, 0.1)
    given = promise_of(seconds, std, "expected_improvement", 1.0)
    assert promise_of(seconds, std, "expected_improvement", None).tolist() == given.tolist()
