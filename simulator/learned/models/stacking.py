"""Stacked regression (Breiman, 1996): how far each of several corrections is to be believed."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from autosync.simulator.learned.models.ridge import (RobustLoss)

F64 = NDArray[np.float64]

TRUST = 0.25
"""Standard deviation of weights around equal ones, before any trial: a few dozen trials move them
as far as they prove, hundreds choose."""
LEAST = 0.01
"""A part with less weight is not worth asking."""


def stacked_weights(left_out: F64, residual: F64, loss: RobustLoss) -> F64:
    """Weights of the parts, `(parts,)`: none negative, their sum at most 1, with the least loss of
    what they leave of the residual. The rest of 1 is the weight of no correction.

    left_out f64[parts, n]: what each part says of trials that it was not fitted to, log seconds
    of median 0, like the residual f64[n]. Weights are drawn to equal ones of the parts that say
    anything, as a normal prior of deviation TRUST draws them against n misses as large as equal
    weights leave.
    """
    speaking = left_out.any(axis=1)
    equal = np.asarray(speaking, dtype=np.float64) / max(int(speaking.sum()), 1)
    noise = float(loss(residual - equal @ left_out).mean())
    if noise == 0.0 or not speaking.any():
        return equal
    words, start, count = left_out[speaking], equal[speaking], len(residual)
    pull = 1.0 / (count * TRUST**2)

    def objective(weights: F64) -> tuple[float, F64]:
        misses = residual - weights @ words
        away = weights - start
        slope = -(words @ loss.slope(misses)) / (count * noise) + 2.0 * pull * away
        return float(loss(misses).mean() / noise + pull * (away**2).sum()), slope

    room = {"type": "ineq", "fun": lambda w: 1.0 - w.sum(), "jac": lambda w: -np.ones_like(w)}
    found = minimize(
        objective,
        start,
        method="SLSQP",
        jac=True,
        bounds=[(0.0, 1.0)] * len(start),
        constraints=[room],
        options={"ftol": 1e-10},
    )
    weights = np.zeros(len(left_out))
    weights[speaking] = np.where(found.x < LEAST, 0.0, found.x)
    result: F64 = weights / max(1.0, float(weights.sum()))
    return result
