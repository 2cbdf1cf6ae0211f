"""Weights of stacked corrections, on numbers made up by formula."""

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.simulator.learned.models.ensemble import stacked_weights
from autosync.simulator.learned.models.left_out_trials import RobustLoss

F64 = NDArray[np.float64]


def world(count: int, seed: int = 0) -> tuple[F64, F64]:
    """Residuals, and four parts: exact, exact but for noise as large, noise, silent."""
    rng = np.random.default_rng(seed)
    residual = 0.1 * rng.standard_normal(count)
    noise = 0.1 * rng.standard_normal((2, count))
    parts = np.stack([residual, residual + noise[0], noise[1], np.zeros(count)])
    centered = parts - np.median(parts, axis=1, keepdims=True)
    return residual - np.median(residual), centered


def weights_of(residual: F64, parts: F64) -> F64:
    return stacked_weights(parts, residual, RobustLoss(residual, np.ones(len(residual))))


def test_many_trials_find_the_part_that_is_right() -> None:
    weights = weights_of(*world(2000))
    assert weights[0] > 0.9
    assert weights[2] < 0.05
    assert weights[3] == 0.0


def test_few_trials_stay_near_equal_weights_of_the_parts_that_speak() -> None:
    rng = np.random.default_rng(1)
    residual = 0.1 * rng.standard_normal(8)
    parts = np.stack([*(residual + 0.1 * rng.standard_normal((3, 8))), np.zeros(8)])
    weights = weights_of(residual, parts)
    np.testing.assert_allclose(weights[:3], 1 / 3, atol=0.2)
    assert weights[3] == 0.0


def test_parts_that_overstate_are_believed_in_part_and_opposite_ones_not_at_all() -> None:
    residual, parts = world(1000)
    half = weights_of(0.5 * residual, parts[:1])
    assert half == pytest.approx([0.5], abs=0.02)
    opposite = weights_of(-residual, parts[:1])
    assert opposite == pytest.approx([0.0])


def test_no_weights_that_are_allowed_have_less_loss() -> None:
    """Against every point of a grid, on trials that count differently and some far misses."""
    residual, parts = world(60, seed=2)
    residual[:4] += 1.0
    loss = RobustLoss(residual, np.linspace(1.0, 3.0, 60))
    found = stacked_weights(parts[:3], residual, loss)
    noise = loss(residual - parts[:3].mean(axis=0)).mean()

    def objective(weights: F64) -> float:
        pull = ((weights - 1 / 3) ** 2).sum() / (60 * 0.25**2)
        return float(loss(residual - weights @ parts[:3]).mean() / noise + pull)

    ticks = np.linspace(0.0, 1.0, 21)
    grid = np.stack(np.meshgrid(ticks, ticks, ticks), axis=-1).reshape(-1, 3)
    least = min(objective(point) for point in grid[grid.sum(axis=1) <= 1.0])
    assert (found >= 0).all()
    assert found.sum() <= 1.0 + 1e-12
    assert objective(found) <= least + 1e-3


def test_silent_parts_have_no_weight() -> None:
    residual, parts = world(20)
    assert not weights_of(residual, np.zeros_like(parts)).any()


def test_the_slope_of_the_loss_is_its_derivative() -> None:
    rng = np.random.default_rng(3)
    loss = RobustLoss(rng.standard_normal(50), np.linspace(1.0, 2.0, 50))
    misses, step = 3.0 * rng.standard_normal(50), 1e-6
    numeric = (loss(misses + step) - loss(misses - step)) / (2.0 * step)
    np.testing.assert_allclose(loss.slope(misses), numeric, rtol=1e-4, atol=1e-6)
