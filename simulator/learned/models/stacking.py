"""Stacked regression (Breiman, 1996): the weights of several corrections."""

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.learned.models.robust_loss import RobustLoss

F64 = NDArray[np.float64]

WEIGHT_STD = 0.25
"""Standard deviation of the prior of the weights, whose mean are equal ones: a few dozen trials
move them little, hundreds decide."""
LEAST_WEIGHT = 0.01
"""A part with less weight gets none: its prediction is not worth the time."""


def stacked_weights(
    left_out: F64, residual: F64, loss: RobustLoss, expected: F64 | None = None
) -> F64:
    """Weights of the parts, `(parts,)`: none negative, their sum at most 1, with the least loss of
    the residual less the weighted corrections. The rest of 1 is the weight of no correction.

    left_out f64[parts, n]: each part's corrections of trials that it was not fitted to, log seconds
    of median 0, like the residual f64[n]. The loss has the term of a normal prior, whose mean are
    the weights `expected`, by default equal ones of the parts that correct anything, and whose
    deviation is WEIGHT_STD, with the misses of these weights for noise.
    """
    from scipy.optimize import minimize  # loads for long; rankings fit nothing

    correcting = left_out.any(axis=1)
    prior = np.asarray(correcting, dtype=np.float64) / max(int(correcting.sum()), 1)
    if expected is not None:
        prior = expected
    noise = float(loss(residual - prior @ left_out).mean())
    if noise == 0.0 or not correcting.any():
        return prior
    corrections, mean, count = left_out[correcting], prior[correcting], len(residual)
    pull = 1.0 / (count * WEIGHT_STD**2)

    def objective(weights: F64) -> tuple[float, F64]:
        misses = residual - weights @ corrections
        away = weights - mean
        slope = -(corrections @ loss.slope(misses)) / (count * noise) + 2.0 * pull * away
        return float(loss(misses).mean() / noise + pull * (away**2).sum()), slope

    room = {"type": "ineq", "fun": lambda w: 1.0 - w.sum(), "jac": lambda w: -np.ones_like(w)}
    found = minimize(
        objective,
        mean,
        method="SLSQP",
        jac=True,
        bounds=[(0.0, 1.0)] * len(mean),
        constraints=[room],
        options={"ftol": 1e-10},
    )
    weights = np.zeros(len(left_out))
    weights[correcting] = np.where(found.x < LEAST_WEIGHT, 0.0, found.x)
    result: F64 = weights / max(1.0, float(weights.sum()))
    return result
