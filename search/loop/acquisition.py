"""What a proposal is judged by: its prediction, and the doubt in it.

A learned simulator states the standard deviation of the logarithm of its seconds, which grows with
the distance from all trials. A bound below the prediction tries what could be fast; the expected
improvement (Jones, Schonlau and Welch 1998, equation 15) also asks by how much, and how surely.
"""

import numpy as np
from numpy.typing import NDArray

from autosync.search.loop.settings import Acquisition

F64 = NDArray[np.float64]

OPTIMISM = 1.0
"""Standard deviations of the lower bound below the prediction."""
LEAST_STD = 1e-9
"""Log seconds; keeps a certain prediction apart from a division by zero."""


def promise_of(seconds: F64, std: F64, acquisition: Acquisition, best_seconds: float | None) -> F64:
    """What proposals are ranked by, `(n,)`, lower is better, in seconds.

    seconds, std `(n,)`: predicted, and the standard deviation of their logarithm. best_seconds: the
    fastest measured; before the first trial the fastest predicted stands for it.
    """
    match acquisition:
        case "prediction":
            return seconds
        case "lower_bound":
            bound: F64 = seconds * np.exp(-OPTIMISM * std)
            return bound
        case "expected_improvement":
            best = best_seconds if best_seconds is not None else float(seconds.min(initial=np.inf))
            return -expected_improvement(seconds, std, best)


def expected_improvement(seconds: F64, std: F64, best_seconds: float) -> F64:
    """By how much each strategy is expected to be faster than the best, `(n,)` seconds, where a
    slower one is no loss: the mean of max(best - T, 0), T log-normal about the prediction."""
    from scipy.special import ndtr  # loads for long; most rankings ask for none

    spread = np.maximum(std, LEAST_STD)
    below = (np.log(best_seconds) - np.log(seconds)) / spread
    mean = seconds * np.exp(0.5 * spread**2)
    gain: F64 = best_seconds * ndtr(below) - mean * ndtr(below - spread)
    return np.maximum(gain, 0.0)
