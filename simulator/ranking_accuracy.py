"""How many pairs of measured strategies predictions rank rightly."""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def pairwise_accuracy(predicted: F64, measured: F64, beyond: float = 0.0) -> float:
    """Share of the pairs whose times differ by more than `beyond`, relatively, ranked correctly."""
    right, count = pairs_ranked(predicted, measured, beyond)
    return right / count if count else float("nan")


def pairs_ranked(predicted: F64, measured: F64, beyond: float = 0.0) -> tuple[float, int]:
    """Pairs ranked correctly and pairs in all; a predicted tie is half right."""
    i, j = np.triu_indices(len(measured), 1)
    apart = np.log(measured[i] / measured[j])
    counts = np.abs(apart) > beyond
    guess = np.sign(predicted[i] - predicted[j])[counts]
    right = np.where(guess == 0, 0.5, guess == np.sign(apart[counts]))
    return float(right.sum()), int(counts.sum())
