"""What a predictor that knows the true seconds would reach, judged by labels of this noise.

The model: the logarithm of a label is that of the true seconds plus a normal error, independent of
the strategy. Its standard deviation is half a domain's noise: that is the robust deviation of the
difference of two measurements, and a label is their mean. The labels' own spread holds these errors
too, so true seconds are the labels drawn together about their mean, until labels drawn from them
spread as the measured ones do.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.evaluation.metrics import RankingScores, judge, mean_scores

F64 = NDArray[np.float64]

DRAWS = 50
"""Of labels; the mean of a measure over them is given."""


def label_error(noise: float) -> float:
    """The standard deviation of a label's logarithm, from a domain's noise."""
    return noise / 2.0


def assumed_truth(labels: F64, error: float) -> F64:
    """`(n,)` seconds whose labels would spread as these do."""
    logs = np.log(labels)
    spread = float(logs.var()) or np.inf
    kept = np.sqrt(max(0.0, 1.0 - error**2 / spread))
    truth: F64 = np.exp(logs.mean() + kept * (logs - logs.mean()))
    return truth


def drawn_labels(truth: F64, error: float, seed: int = 0) -> Iterator[F64]:
    """`DRAWS` sets of labels of the true seconds, `(n,)` each."""
    rng = np.random.default_rng(seed)
    for _ in range(DRAWS):
        yield truth * np.exp(rng.normal(0.0, error, len(truth)))


def perfect_scores(labels: F64, noise: float | None) -> RankingScores | None:
    """The mean scores of the true seconds; None where the noise is unknown, or nothing to rank."""
    if noise is None or len(labels) < 2:
        return None
    error = label_error(noise)
    truth = assumed_truth(labels, error)
    return mean_scores([judge(truth, drawn, noise) for drawn in drawn_labels(truth, error)])
