"""The loss, the calibration and the ridge, worked by hand."""

import numpy as np
import pytest
import torch

from autosync.simulator.learned.calibration import UNTRIED_MARGIN, calibrate
from autosync.simulator.learned.models.ridge import (
    fit_pooled,
    fit_ridge,
    leave_one_out,
    ridge_weights,
)
from autosync.simulator.learned.networks.pairwise_loss import ranking_loss, slower_pairs


def test_pairs_are_ordered_by_time_then_by_partitions() -> None:
    labels = torch.tensor([1.0, 1.005, 1.5])
    partitions = torch.tensor([40.0, 10.0, 10.0])
    slower = slower_pairs(labels, partitions, sigma=0.01)
    assert slower.tolist() == [[False, True, False], [False, False, False], [True, True, False]]
    without = slower_pairs(labels, partitions, sigma=0.0)
    assert without.tolist() == [[False, False, False], [True, False, False], [True, True, False]]


def test_the_loss_by_hand() -> None:
    """One pair: strategy 0 is slower, scores differ by one temperature in its favour."""
    loss = ranking_loss(
        torch.tensor([0.05, 0.0]), torch.tensor([2.0, 1.0]), torch.ones(2), temperature=0.05
    )
    assert loss.item() == pytest.approx(np.log(1 + np.exp(-1.0)), rel=1e-5)


def test_a_single_strategy_has_no_loss() -> None:
    assert ranking_loss(torch.zeros(1), torch.ones(1), torch.ones(1)).item() == 0.0


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
