"""Ridge regression on numbers made up by formula."""

import numpy as np
import pytest

from autosync.simulator.learned.models.ridge import (
    fit_pooled,
    fit_ridge,
    leave_one_out,
    ridge_weights,
)


def test_leave_one_out_is_what_refitting_without_each_trial_gives() -> None:
    rng = np.random.default_rng(1)
    table, target = rng.standard_normal((12, 4)), rng.standard_normal(12)
    for index, guess in enumerate(leave_one_out(table, target, 2.0)):
        others = np.arange(12) != index
        weights = ridge_weights(table[others], target[others], 2.0)
        assert guess == pytest.approx(table[index] @ weights)


def test_a_ridge_on_noise_is_no_ridge() -> None:
    rng = np.random.default_rng(2)
    chosen = 0
    for _ in range(20):
        ridge, _ = fit_ridge(rng.standard_normal((40, 30)), rng.standard_normal(40))
        chosen += bool(np.isfinite(ridge.penalty))
    assert chosen <= 4


def test_a_ridge_finds_what_is_there() -> None:
    rng = np.random.default_rng(3)
    table = rng.standard_normal((60, 30))
    target = 0.1 * table[:, 3] + 0.01 * rng.standard_normal(60)
    ridge, left_out = fit_ridge(table, target)
    assert np.corrcoef(left_out, target)[0, 1] > 0.9
    assert np.corrcoef(ridge.correction(table), target)[0, 1] > 0.9


def test_a_prior_is_kept_by_few_trials_and_corrected_by_many() -> None:
    rng = np.random.default_rng(4)
    shared = np.ones(5, dtype=bool)
    elsewhere = [rng.standard_normal((50, 5)) for _ in range(3)]
    prior = fit_pooled(elsewhere, [0.1 * t[:, 0] + k for k, t in enumerate(elsewhere)],
                       np.ones(3), shared)  # fmt: skip
    assert prior.weights[0] / prior.scale[0] == pytest.approx(0.1, rel=0.05)
    table = rng.standard_normal((60, 5))
    target = 0.1 * table[:, 0] + 0.1 * table[:, 1]
    few, _ = fit_ridge(table[:4], target[:4], prior)
    many, _ = fit_ridge(table, target, prior)
    np.testing.assert_array_equal(few.weights, prior.weights)
    assert np.corrcoef(many.correction(table), target)[0, 1] > 0.99


def test_a_pooled_ridge_gives_no_weight_to_what_does_not_carry_over() -> None:
    rng = np.random.default_rng(5)
    tables = [rng.standard_normal((40, 2)) for _ in range(2)]
    shared = np.array([True, False])
    pooled = fit_pooled(tables, [t[:, 1] for t in tables], np.ones(2), shared)
    assert pooled.standard(np.array([[0.0, 1.0]]))[0, 1] == 0.0
