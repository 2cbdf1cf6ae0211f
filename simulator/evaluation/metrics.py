"""How well predictions rank measured strategies."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankingScores:
    """Of one set of predictions; NaN where too few strategies or pairs are left to judge.

    accuracy: share of all pairs ranked rightly. beyond_noise: of the pairs further apart than
    twice the noise. fast_quarter, fast_beyond_noise: the same among the fastest quarter.
    kendall: tau b. regret: how much slower the strategy predicted fastest is than the fastest.
    error: median relative error of the seconds. pairs: in beyond_noise.
    """

    accuracy: float
    beyond_noise: float
    fast_quarter: float
    fast_beyond_noise: float
    kendall: float
    regret: float
    error: float
    pairs: int


def judge(predicted: F64, measured: F64, noise: float | None) -> RankingScores:
    """predicted, measured `(n,)` seconds; noise: relative, None where it is unknown."""
    beyond = np.inf if noise is None else 2.0 * noise
    quarter = np.argsort(measured, kind="stable")[: max(2, len(measured) // 4)]
    right, count = pairs_ranked(predicted, measured, beyond)
    fast = predicted[quarter], measured[quarter]
    kendall = kendalltau(predicted, measured).statistic if len(measured) > 1 else np.nan
    return RankingScores(
        accuracy=pairwise_accuracy(predicted, measured),
        beyond_noise=right / count if count else np.nan,
        fast_quarter=pairwise_accuracy(*fast),
        fast_beyond_noise=pairwise_accuracy(*fast, beyond),
        kendall=float(kendall),
        regret=top_regret(predicted, measured),
        error=float(np.median(np.abs(predicted / measured - 1.0))),
        pairs=count,
    )


def pairwise_accuracy(predicted: F64, measured: F64, beyond: float = 0.0) -> float:
    """Share of the pairs whose times differ by more than `beyond`, relatively, ranked rightly."""
    right, count = pairs_ranked(predicted, measured, beyond)
    return right / count if count else float("nan")


def pairs_ranked(predicted: F64, measured: F64, beyond: float = 0.0) -> tuple[float, int]:
    """Pairs ranked rightly and pairs in all; a predicted tie is half right."""
    i, j = np.triu_indices(len(measured), 1)
    apart = np.log(measured[i] / measured[j])
    counts = np.abs(apart) > beyond
    guess = np.sign(predicted[i] - predicted[j])[counts]
    right = np.where(guess == 0, 0.5, guess == np.sign(apart[counts]))
    return float(right.sum()), int(counts.sum())


def top_regret(predicted: F64, measured: F64) -> float:
    """The first among equals of the prediction; 0 is the fastest."""
    return float(measured[int(np.argmin(predicted))] / measured.min() - 1.0)


def mean_scores(scores: Sequence[RankingScores]) -> RankingScores:
    """NaN left out; pairs add up."""
    values: dict[str, Any] = {}
    for field in fields(RankingScores):
        column = np.array([getattr(each, field.name) for each in scores], dtype=np.float64)
        known = column[~np.isnan(column)]
        values[field.name] = float(known.mean()) if len(known) else float("nan")
    return replace(RankingScores(**values), pairs=sum(each.pairs for each in scores))
