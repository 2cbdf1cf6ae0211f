"""How true predictions are over the strategies that searches picked, beside a perfect predictor.

The perfect predictor knows the true seconds and is judged by labels of the domain's noise: the
logarithm of a label is that of the true seconds plus a normal error of half the domain's noise,
which is the robust deviation of the difference of two measurements where a label is their mean.
The labels' own spread holds these errors too, so true seconds are the labels drawn together about
their mean, until labels drawn from them spread as the measured ones do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from autosync.simulator.runtime_dataset import PICKED
from benchmarks.evaluation.measured_pool import MeasuredPool

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

DESIGNS, FIRST_PICKS = 12, 8
"""Hand-designed strategies and picks that teach at the most."""
FEW_DESIGNS, FEW_PICKS = 6, 6
"""Those of a tuning of 12 trials."""
TOP = 8
"""Strategies predicted fastest of which the best is looked at."""
BY_TIMELINE = f"{PICKED}timeline"
DRAWS = 50
"""Sets of labels over which a perfect predictor's scores are averaged."""


@dataclass(frozen=True, slots=True)
class PickScores:
    """Of one set of predictions over the picks of a domain.

    kendall: tau b, 0 where all are predicted alike. excess: median of measured over predicted
    seconds, less 1. regret: how much slower the pick predicted fastest is than the fastest of all
    that was measured of the domain; top_regret: the fastest of the TOP predicted fastest.
    """

    kendall: float
    excess: float
    regret: float
    top_regret: float


def judge_picks(predicted: F64, measured: F64, fastest: float) -> PickScores:
    """predicted, measured `(n,)` seconds; fastest: of everything measured."""
    top = np.argsort(predicted, kind="stable")[:TOP]
    return PickScores(
        kendall=float(np.nan_to_num(kendalltau(predicted, measured).statistic)),
        excess=float(np.median(measured / predicted - 1.0)),
        regret=float(measured[top[0]] / fastest - 1.0),
        top_regret=float(measured[top].min() / fastest - 1.0),
    )


def judged_picks(pool: MeasuredPool) -> tuple[I64, dict[str, I64]]:
    """The picks that judge, and the strategies to learn from by what they are: those of a tuning of
    12 trials, half of them designs, and of 20. None of these judges, and they are the same for
    every simulator."""
    measured, seconds = pool.measured, pool.trials.features.base_seconds
    by_seconds = sorted(measured.designs, key=lambda i: (measured.origins[i] != "ddp", seconds[i]))
    tried = [i for i in measured.picks if measured.origins[i] == BY_TIMELINE][:FIRST_PICKS]
    judged = np.array([i for i in measured.picks if i not in set(tried)], dtype=np.int64)
    taught = {
        "none": [],
        "12": by_seconds[:FEW_DESIGNS] + tried[:FEW_PICKS],
        "20": by_seconds[:DESIGNS] + tried,
    }
    return judged, {words: np.array(rows, dtype=np.int64) for words, rows in taught.items()}


def perfect_scores(labels: F64, judged: I64, noise: float) -> PickScores:
    """labels f64[n]: of everything measured. judged: those to rank."""
    truth = labels.copy()
    truth[judged] = assumed_truth(labels[judged], noise / 2.0)
    scores = [
        judge_picks(truth[judged], drawn[judged], float(drawn.min()))
        for drawn in drawn_labels(truth, noise / 2.0)
    ]
    return PickScores(*np.mean([astuple(each) for each in scores], axis=0).tolist())


def assumed_truth(labels: F64, error: float) -> F64:
    """`(n,)` seconds whose labels, with errors of this deviation, would spread as these do."""
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


def pick_line(scores: Sequence[PickScores]) -> str:
    """Means over domains (of the excess its size), and tau where it is least."""
    mean = PickScores(*np.mean([astuple(each) for each in scores], axis=0).tolist())
    size = float(np.mean([abs(each.excess) for each in scores]))
    worst = min(each.kendall for each in scores)
    percents = " | ".join(f"{100 * v:.1f} %" for v in (size, mean.regret, mean.top_regret))
    return f"{mean.kendall:.3f} | {worst:.2f} | {percents}"


PICK_COLUMNS = (
    "tau",
    "worst domain",
    "size of the median excess",
    "predicted fastest behind the best",
    f"best of {TOP} behind the best",
)
