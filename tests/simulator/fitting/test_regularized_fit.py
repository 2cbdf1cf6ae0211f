"""Fits whose answers are known: lines, with more unknowns than measurements tell."""

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.simulator.fitting.regularized_fit import fit_regularized

F64 = NDArray[np.float64]

WIDE = np.full(3, 50.0)


def slopes(rows: int) -> F64:
    """The third number is in no measurement."""
    both = np.random.default_rng(0).normal(size=(rows, 3))
    both[:, 2] = 0.0
    return both


def test_what_measurements_tell_is_found_and_the_rest_stays() -> None:
    lines, truth = slopes(40), np.array([2.0, -1.5, 0.0])
    found = fit_regularized(lambda x: lines @ x, lines @ truth, 0.01, -WIDE, WIDE, 20)
    assert found == pytest.approx(truth, abs=0.01)


def test_few_noisy_measurements_move_little() -> None:
    lines, truth = slopes(2), np.array([2.0, -1.5, 0.0])
    found = fit_regularized(lambda x: lines @ x, lines @ truth, 10.0, -WIDE, WIDE, 20)
    assert np.abs(found).max() < 0.1


def test_a_wild_measurement_pulls_little() -> None:
    lines, truth = slopes(40), np.array([2.0, -1.5, 0.0])
    measured = lines @ truth
    measured[7] += 100.0
    found = fit_regularized(lambda x: lines @ x, measured, 0.1, -WIDE, WIDE, 30)
    assert found == pytest.approx(truth, abs=0.1)


def test_bounds_hold() -> None:
    lines = slopes(40)
    low, high = np.array([-1.0, -1.0, 0.0]), np.array([1.0, 1.0, 0.0])
    found = fit_regularized(lambda x: lines @ x, lines @ [2.0, 0.5, 0.0], 0.01, low, high, 20)
    assert found[0] == 1.0
    assert -1.0 <= found[1] <= 1.0
    assert found[2] == 0.0
