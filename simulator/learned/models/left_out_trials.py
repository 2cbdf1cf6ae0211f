"""Trials left out of a fit: which, how misses are weighed, and when a gain is more than chance."""

import numpy as np
from numpy.typing import NDArray

FOLDS = 3
"""Parts, each left out once to judge what was fitted to the others."""


def fold_of(n: int, folds: int, seed: int) -> NDArray[np.int64]:
    """Which of `folds` equal parts each of `n` trials belongs to, i64[n], at random."""
    result: NDArray[np.int64] = np.random.default_rng(seed).permutation(n) % folds
    return result


F64 = NDArray[np.float64]

CONFIDENCE = 2.0
"""Standard errors by which a correction must beat the base on trials it was not fitted to. One is
too few: the best of eight penalties passes it on every fourth set of labels that are noise."""


class RobustLoss:
    """Of misses in log seconds: squared, linear beyond two deviations of the residuals, weighted.

    base_seconds `(n,)`: the slower, the less exact and the less wanted: a strategy counts by the
    fastest one's seconds over its own.
    """

    def __init__(self, residual: F64, base_seconds: F64) -> None:
        self.importance: F64 = base_seconds.min() / base_seconds
        self.bend = 2.0 * float(np.sqrt(np.average(residual**2, weights=self.importance)))

    def __call__(self, misses: F64) -> F64:
        """Of each miss, `(n,)` to `(n,)`."""
        far = np.abs(misses)
        squared = np.where(far < self.bend, far**2, 2.0 * self.bend * far - self.bend**2)
        result: F64 = squared * self.importance
        return result

    def slope(self, misses: F64) -> F64:
        """By how much each one's loss rises with its miss, `(n,)` to `(n,)`."""
        result: F64 = 2.0 * np.clip(misses, -self.bend, self.bend) * self.importance
        return result


def is_significant(gain: F64) -> bool:
    """Whether a loss falls by `gain` `(n,)` beyond CONFIDENCE standard errors."""
    return bool(gain.mean() > CONFIDENCE * gain.std() / np.sqrt(len(gain)))
