"""From scores to seconds: a strictly rising curve through the trials, and an honest interval."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

F64 = NDArray[np.float64]

COVERAGE = 0.9
"""Of the interval."""
FEWEST = 8
"""Below this many trials only the level is fitted, not the curve."""
UNTRIED_MARGIN = 0.5
"""Half width of the interval without any trial, in log seconds (a factor of 1.65): what the
timeline is off by on hardware whose constants nobody probed."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """scores, log_seconds f64[K]: knots of a strictly rising curve, slope 1 outside of them.

    margin: half width of the interval, in log seconds.
    """

    scores: F64
    log_seconds: F64
    margin: float

    def seconds(self, scores: F64) -> F64:
        """Scores are log seconds up to a monotone curve; `(n,)` to `(n,)`, the order kept."""
        low, high = self.scores[0], self.scores[-1]
        inside = np.interp(scores, self.scores, self.log_seconds)
        beyond = np.minimum(scores - low, 0.0) + np.maximum(scores - high, 0.0)
        result: F64 = np.exp(inside + beyond)
        return result


UNCALIBRATED = Calibration(np.zeros(1), np.zeros(1), UNTRIED_MARGIN)
"""Scores are taken for log seconds."""


def calibrate(scores: F64, step_seconds: F64, held: NDArray[np.bool_]) -> Calibration:
    """Isotonic regression of log seconds on scores, joined through the middles of its blocks.

    held `(n,)`: trials that the scores were not fitted to; they alone set the interval (split
    conformal: the COVERAGE quantile of their errors, one rank higher for being finite).
    """
    target = np.log(step_seconds)
    if len(scores) < FEWEST:
        level = float(np.median(target - scores))
        return Calibration(np.zeros(1), np.array([level]), UNTRIED_MARGIN)
    order = np.argsort(scores, kind="stable")
    fit = isotonic_regression(target[order])
    block = np.repeat(np.arange(len(fit.blocks) - 1), np.diff(fit.blocks))
    counts = np.bincount(block)
    knots = np.bincount(block, weights=scores[order]) / counts
    levels = np.bincount(block, weights=target[order]) / counts
    rising = np.concatenate(([True], np.diff(knots) > 1e-12))
    curve = Calibration(knots[rising], levels[rising], 0.0)
    judged = held if held.sum() >= FEWEST else np.ones(len(scores), dtype=np.bool_)
    errors = np.sort(np.abs(target - np.log(curve.seconds(scores)))[judged])
    rank = min(int(np.ceil(COVERAGE * (len(errors) + 1))), len(errors))
    return Calibration(curve.scores, curve.log_seconds, float(errors[rank - 1]))
