"""How well predictions rank measured strategies, and what a perfect predictor would reach.

The perfect predictor knows the true seconds and is judged by labels of the domain's noise. The
model: the logarithm of a label is that of the true seconds plus a normal error, independent of the
strategy. Its standard deviation is half a domain's noise, which is the robust deviation of the
difference of two measurements, where a label is their mean. The labels' own spread holds these
errors too, so true seconds are the labels drawn together about their mean, until labels drawn from
them spread as the measured ones do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from autosync.simulator.ranking_accuracy import pairs_ranked, pairwise_accuracy

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

SHARES = (0.70, 0.15, 0.15)
"""Train, validation, test (supplement, section 10)."""
DRAWS = 50
"""Sets of labels over which a perfect predictor's scores are averaged."""


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
    return RankingScores(
        accuracy=pairwise_accuracy(predicted, measured),
        beyond_noise=right / count if count else np.nan,
        fast_quarter=pairwise_accuracy(*fast),
        fast_beyond_noise=pairwise_accuracy(*fast, beyond),
        kendall=kendall_tau(predicted, measured) if len(measured) > 1 else np.nan,
        regret=float(measured[int(np.argmin(predicted))] / measured.min() - 1.0),
        error=float(np.median(np.abs(predicted / measured - 1.0))),
        pairs=count,
    )


def kendall_tau(predicted: F64, measured: F64) -> float:
    """Tau b."""
    return float(kendalltau(predicted, measured).statistic)


def mean_scores(scores: Sequence[RankingScores]) -> RankingScores:
    """NaN left out; pairs add up."""
    values: dict[str, Any] = {}
    for field in fields(RankingScores):
        column = np.array([getattr(each, field.name) for each in scores], dtype=np.float64)
        known = column[~np.isnan(column)]
        values[field.name] = float(known.mean()) if len(known) else float("nan")
    return replace(RankingScores(**values), pairs=sum(each.pairs for each in scores))


def known_and_test(count: int, seed: int) -> tuple[I64, I64]:
    """Indices of `count` strategies that a learner knows (it parts train and validation itself),
    and of those that only judge it, in the random order of the seed."""
    order = np.random.default_rng(seed).permutation(count)
    test, validation = round(count * SHARES[2]), round(count * SHARES[1])
    known = np.concatenate([order[test + validation :], order[test : test + validation]])
    return known, order[:test]


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
