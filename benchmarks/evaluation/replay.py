"""Replays the search on a measured domain; nothing is measured.

A search tries strategies that nobody designed in a tuning's rounds, learns after each and chooses
by a tuning's own selection. A seed leaves nine tenths of them and says which of two measured passes
each trial returns. The answer is the best, by all measurements, of the three fastest trials.
"""

import numpy as np
from numpy.typing import NDArray

from autosync.search.loop.confirm import FINALISTS
from autosync.search.loop.proposing import ROUND_TRIALS
from autosync.search.loop.ranking import promise_of
from autosync.search.loop.selection import select
from autosync.search.loop.settings import Settings
from benchmarks.evaluation.measured_pool import MeasuredPool
from benchmarks.evaluation.process import Predictor

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

LEAST_STRATEGIES = 220
"""Domains with fewer are learned from and not searched."""
SEED_SHARE = 0.9


def replay(pool: MeasuredPool, predictor: Predictor, trials: int, seed: int) -> F64:
    """By which share the answer after each trial is slower than the fastest that was left, f64[m];
    m is `trials`, or all that there are."""
    rng = np.random.default_rng(seed)
    left = np.sort(rng.permutation(pool.sampled)[: round(SEED_SHARE * len(pool.sampled))])
    passes = pool.passes[rng.integers(2, size=pool.passes.shape[1]), np.arange(len(pool.shares))]
    tried = np.empty(0, dtype=np.int64)
    while len(tried) < min(trials, len(left)):
        rest = np.setdiff1d(left, tried)
        count = min(ROUND_TRIALS, len(rest), trials - len(tried))
        picks = _next_trials(pool, predictor, rest, tried, passes[tried], count)
        tried = np.concatenate((tried, picks))
    labels = pool.trials.step_seconds
    return answers(passes[tried], labels[tried]) / float(labels[left].min()) - 1.0


def answers(trial_seconds: F64, label_seconds: F64) -> F64:
    """What a tuning would answer after each trial, f64[m]. trial_seconds: as the trials returned
    them; label_seconds: the best estimates of the same strategies."""
    order = np.argsort(trial_seconds, kind="stable")
    found = []
    for count in range(1, len(order) + 1):
        finalists = order[order < count][:FINALISTS]
        found.append(label_seconds[finalists].min())
    return np.array(found)


def _next_trials(
    pool: MeasuredPool, predictor: Predictor, rest: I64, tried: I64, seconds: F64, count: int
) -> I64:
    features = pool.trials.features
    predicted, std = predictor(features, tried, seconds, rest)
    best = float(seconds.min()) if len(seconds) else None
    promise = promise_of(predicted, std, Settings().acquisition, best)
    chosen = select(promise, pool.shares[rest], count, Settings().alpha, pool.shares[tried])
    return rest[chosen]
