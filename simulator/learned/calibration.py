"""From scores to seconds: a strictly rising curve through the trials, and how far it errs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.learned.models.model_arrays import (
    ArrayForm,
    Arrays,
    not_falling,
    not_negative,
    rising,
)

F64 = NDArray[np.float64]

COVERAGE = 0.9
"""Of the interval."""
FEWEST_FOR_CURVE = 8
"""Below this many trials only the level is fitted, not the curve."""
BELIEVED_TRIALS = 2.0
"""What the level that other domains taught counts beside a domain's first trials. After torch's DDP
alone, median excesses of the bundled domains' picks are least in size from 1 to 4 (3.5 % with
transferred trees; 4.3 % without that trial, 4.5 % where it alone decides)."""
UNTRIED_MARGIN = 0.5
"""Half width of the interval without any trial, in log seconds (a factor of 1.65): the error of
the timeline on hardware whose constants nobody probed."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """scores, log_seconds f64[K]: knots of a strictly rising curve, slope 1 outside of them.

    margin: half width of the interval, in log seconds.
    """

    scores: F64
    log_seconds: F64
    margin: float

    def seconds(self, scores: F64) -> F64:
        """Scores are log seconds up to a monotone curve; `(n,)` to `(n,)`, in the same order."""
        low, high = self.scores[0], self.scores[-1]
        inside = np.interp(scores, self.scores, self.log_seconds)
        beyond = np.minimum(scores - low, 0.0) + np.maximum(scores - high, 0.0)
        result: F64 = np.exp(inside + beyond)
        return result

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By the names that checkpoints hold."""
        return {
            "scores": self.scores,
            "log_seconds": self.log_seconds,
            "margin": np.array([self.margin]),
        }

    @staticmethod
    def array_forms(given: Arrays) -> dict[str, ArrayForm]:
        """A curve has as many knots as it has scores."""
        scores = given.get("scores")
        knots = max(scores.size, 1) if scores is not None else 1
        return {
            "scores": ArrayForm((knots,), rule=rising),
            "log_seconds": ArrayForm((knots,), rule=not_falling),
            "margin": ArrayForm((1,), rule=not_negative),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "Calibration":
        return cls(arrays["scores"], arrays["log_seconds"], float(arrays["margin"][0]))


UNCALIBRATED = Calibration(np.zeros(1), np.zeros(1), UNTRIED_MARGIN)
"""Scores are taken for log seconds."""


def calibrate(
    scores: F64,
    step_seconds: F64,
    left_out: NDArray[np.bool_],
    before: Calibration = UNCALIBRATED,
) -> Calibration:
    """Isotonic regression of log seconds on scores, joined through the middles of its blocks. Of
    fewer trials than that takes the level alone, between theirs and what was believed before,
    which counts BELIEVED_TRIALS; how far it errs is still what other domains taught.

    left_out `(n,)`: trials that the scores were not fitted to; they alone set the interval (split
    conformal: the COVERAGE quantile of their errors, of n + 1 for n are finite).
    """
    from scipy.optimize import isotonic_regression  # loads for long; rankings fit nothing

    target = np.log(step_seconds)
    if len(scores) < FEWEST_FOR_CURVE:
        level = float(np.median(target - scores))
        if before is not UNCALIBRATED:
            believed = float(np.median(np.log(before.seconds(scores)) - scores))
            share = BELIEVED_TRIALS / (BELIEVED_TRIALS + len(scores))
            level += share * (believed - level)
        return Calibration(np.zeros(1), np.array([level]), before.margin)
    order = np.argsort(scores, kind="stable")
    fit = isotonic_regression(target[order])
    block = np.repeat(np.arange(len(fit.blocks) - 1), np.diff(fit.blocks))
    counts = np.bincount(block)
    knots = np.bincount(block, weights=scores[order]) / counts
    levels = np.bincount(block, weights=target[order]) / counts
    steps_up = np.concatenate(([True], np.diff(knots) > 1e-12))
    curve = Calibration(knots[steps_up], levels[steps_up], 0.0)
    judged = (
        left_out if left_out.sum() >= FEWEST_FOR_CURVE else np.ones(len(scores), dtype=np.bool_)
    )
    errors = np.sort(np.abs(target - np.log(curve.seconds(scores)))[judged])
    rank = min(int(np.ceil(COVERAGE * (len(errors) + 1))), len(errors))
    return Calibration(curve.scores, curve.log_seconds, float(errors[rank - 1]))
