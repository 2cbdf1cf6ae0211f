"""Least squares with what is known before, within bounds, by scipy's trust-region methods.

Iterations are piecewise smooth in the costs, so derivatives are differences over a step that is
long beside the pieces. Errors count as Student's t distribution has them: a trial that went wrong,
or a strategy that no costs explain, pulls less the further off it is.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

F64 = NDArray[np.float64]

DEGREES_OF_FREEDOM = 3.0
"""Of the distribution of errors; normal ones have infinitely many."""
DIFFERENCE_STEP = 0.15
"""Of derivatives, in standard deviations of what is known before."""
SMALLEST_GAIN = 1e-5
"""Relative: the fit ends where a step gains less."""
INSIDE = 1e-3
"""How far from its bounds, as a share of what lies between them, each number begins: the interior
method does not leave a bound that it begins on."""


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
    free = np.flatnonzero(high > low)
    vector = np.zeros(len(low))
    if not len(free):
        return vector
    low, high = low[free], high[free]

    def residuals(of_free: F64) -> F64:
        vector[free] = of_free
        errors = (predict(vector) - target) / noise
        heavy = np.sqrt(DEGREES_OF_FREEDOM * np.log1p(errors**2 / DEGREES_OF_FREEDOM))
        return np.concatenate([np.copysign(heavy, errors), of_free])

    def slopes(of_free: F64) -> F64:
        """`(m + n, n)`: of the residuals by each number, in the direction in which there is
        room."""
        here = residuals(of_free)
        found = np.empty((len(here), len(of_free)))
        for place in range(len(of_free)):
            up = high[place] - of_free[place] >= of_free[place] - low[place]
            there = of_free.copy()
            there[place] += DIFFERENCE_STEP if up else -DIFFERENCE_STEP
            there = np.clip(there, low, high)
            found[:, place] = (residuals(there) - here) / (there[place] - of_free[place])
        return found

    inside = INSIDE * (high - low)
    begin = np.clip(0.0, low + inside, high - inside)
    for method in ("trf", "dogbox"):  # the first moves along bounds, the second ends on them
        fit = least_squares(
            residuals,
            begin,
            jac=slopes,
            bounds=(low, high),
            method=method,
            ftol=SMALLEST_GAIN,
            max_nfev=max_iterations,
        )
        begin = fit.x
    vector[free] = begin
    return vector
