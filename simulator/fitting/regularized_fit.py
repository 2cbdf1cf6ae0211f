"""Least squares with what is known before, within bounds: Gauss and Newton's method, damped.

Iterations are piecewise smooth in the costs, so derivatives are differences over a step that is
long beside the pieces. Errors count as Student's t distribution has them: a trial that went wrong,
or a strategy that no costs explain, pulls less the further off it is.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

DEGREES_OF_FREEDOM = 3.0
"""Of the distribution of errors; normal ones have infinitely many."""
DIFFERENCE_STEP = 0.15
LONGEST_STEP = 1.0
SMALLEST_GAIN = 1e-3
"""Relative: the fit ends where a step gains less."""
DAMPINGS = 6
"""Tried in one iteration, each four times the one before."""


def fit_regularized(
    predict: Callable[[F64], F64],
    target: F64,
    noise: float,
    low: F64,
    high: F64,
    max_iterations: int,
) -> F64:
    """The vector `(n,)` with the least sum of squares, its own among them: 0 is what is known
    before, 1 a standard deviation from there.

    predict: from a vector to `(m,)`, compared with target. noise: the standard deviation of both
    together. low, high `(n,)`: bounds, with 0 between them.
    """
    vector = np.zeros(len(low))
    errors = (predict(vector) - target) / noise
    least, damping = _loss(errors, vector), 1.0
    for _ in range(max_iterations):
        slopes = _slopes(predict, target, noise, vector, errors, low, high)
        found = _step(predict, target, noise, vector, errors, slopes, low, high, least, damping)
        if found is None:
            break
        vector, errors, loss, damping = found
        gain, least = least - loss, loss
        if gain < SMALLEST_GAIN * least:
            break
    return vector


def _loss(errors: F64, vector: F64) -> float:
    heavy = DEGREES_OF_FREEDOM * np.log1p(errors**2 / DEGREES_OF_FREEDOM).sum()
    return float(heavy + (vector**2).sum())


def _slopes(
    predict: Callable[[F64], F64],
    target: F64,
    noise: float,
    vector: F64,
    errors: F64,
    low: F64,
    high: F64,
) -> F64:
    """`(m, n)`: of the errors by each number, in the direction in which there is room."""
    slopes = np.empty((len(errors), len(vector)))
    for place in range(len(vector)):
        up = high[place] - vector[place] >= vector[place] - low[place]
        there = vector.copy()
        there[place] += DIFFERENCE_STEP if up else -DIFFERENCE_STEP
        there = np.clip(there, low, high)
        moved = there[place] - vector[place]
        if moved == 0.0:
            slopes[:, place] = 0.0
            continue
        slopes[:, place] = ((predict(there) - target) / noise - errors) / moved
    return slopes


def _step(
    predict: Callable[[F64], F64],
    target: F64,
    noise: float,
    vector: F64,
    errors: F64,
    slopes: F64,
    low: F64,
    high: F64,
    least: float,
    damping: float,
) -> tuple[F64, F64, float, float] | None:
    """The next vector, its errors, its loss and the damping after it; None where nothing gains."""
    trust = 1.0 / (1.0 + errors**2 / DEGREES_OF_FREEDOM)
    curvature = slopes.T @ (trust[:, None] * slopes) + np.eye(len(vector))
    gradient = slopes.T @ (trust * errors) + vector
    blocked = ((vector <= low) & (gradient > 0)) | ((vector >= high) & (gradient < 0))
    free = np.flatnonzero(~blocked)
    for _ in range(DAMPINGS):
        damped = curvature[np.ix_(free, free)]
        damped = damped + damping * np.diag(np.diag(damped))
        moved = np.zeros(len(vector))
        moved[free] = -np.linalg.solve(damped, gradient[free])
        there = np.clip(vector + np.clip(moved, -LONGEST_STEP, LONGEST_STEP), low, high)
        errors_there = (predict(there) - target) / noise
        loss = _loss(errors_there, there)
        if loss < least:
            return there, errors_there, loss, max(damping / 5.0, 1e-4)
        damping *= 4.0
    return None
