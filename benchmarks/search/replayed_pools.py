"""Tunings replayed on measured strategies: a trial is a look into the table."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.bundled_data import data_folder
from autosync.search.loop.acquisition import expected_improvement, promise_of
from autosync.search.loop.message_equality import message_shares
from autosync.search.loop.selection import select
from autosync.search.loop.settings import Acquisition
from autosync.simulator.learned.checkpoint import LEARNED
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.learned_model import LabelledTrials, Recipe, make_model
from autosync.simulator.learned.training import pretrained
from autosync.simulator.runtime_dataset import MeasuredDomain, load_dataset

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Predictions = tuple[F64, F64]
"""Seconds, and the standard deviation of their logarithm, of each strategy."""

ROUND = 4
"""Trials between two refits."""
BUDGET = 20
DESIGNS = 8
"""Trials of hand-designed strategies before the others, where there are any."""
DRAWN_SHARE = 0.6
"""Of a pool, what a seed leaves to choose from."""


@dataclass(frozen=True, slots=True)
class SelectionRule:
    """learned: by the simulator that learns, else the timeline. counted: similarity to what was
    tried in earlier rounds counts, beside that to the picks of the round."""

    name: str
    learned: bool
    acquisition: Acquisition
    alpha: float
    counted: bool = False


@dataclass(frozen=True, slots=True)
class ReplayPool:
    """The measured strategies of a domain. shares: `message_shares`; designed bool[n]: by hand;
    noise: of the domain, relative."""

    name: str
    trials: LabelledTrials
    shares: F64
    designed: NDArray[np.bool_]
    noise: float


@dataclass(frozen=True, slots=True)
class ReplayedTuning:
    """seconds: of the BUDGET trials in their order. fastest: of all that could be tried.
    gains: by the number of trials before each choice, what its best was expected to gain, as a
    share of the fastest seconds so far."""

    seconds: tuple[float, ...]
    fastest: float
    gains: dict[int, float]

    def regret(self, trials: int) -> float:
        """How much slower the fastest of so many trials is than the fastest of all."""
        return min(self.seconds[:trials]) / self.fastest - 1.0

    def stopped_at(self, least_gain: float) -> int:
        """Trials until a choice promises less."""
        ends = [tried for tried, gain in self.gains.items() if gain < least_gain]
        return min(ends, default=len(self.seconds))


def replay_pools() -> list[ReplayPool]:
    return [_pool(measured) for measured in load_dataset(data_folder("runtimes"))]


def _pool(measured: MeasuredDomain) -> ReplayPool:
    features = features_of(measured.domain, measured.population, with_shards=False)
    designed = np.zeros(len(measured), dtype=np.bool_)
    designed[measured.designs] = True
    return ReplayPool(
        measured.name,
        LabelledTrials(measured.domain, features, measured.label_seconds),
        message_shares(measured.domain, measured.population),
        designed,
        measured.noise or 0.0,
    )


def trained_without(pools: Sequence[ReplayPool], left_out: ReplayPool) -> LearnedSimulator:
    """Process and trees that learned from the domains of other models alone."""
    model = left_out.trials.domain.graph.name
    others = [pool.trials for pool in pools if pool.trials.domain.graph.name != model]
    return pretrained(make_model(Recipe("ensemble", members=LEARNED), 0), others)


def replay_tuning(
    pool: ReplayPool,
    simulator: LearnedSimulator,
    rule: SelectionRule,
    seed: int,
    designs: bool,
    known: dict[bytes, Predictions],
) -> ReplayedTuning:
    """A tuning whose trials are drawn from a part of the pool, which the seed chooses.

    designs: hand-designed strategies are there, and DESIGNS of them are tried first, as predicted.
    simulator: learns in a copy. known: what a simulator that learned from the same trials has
    predicted before; grows.
    """
    rng = np.random.default_rng(seed)
    given = np.flatnonzero(designs | ~pool.designed)
    given = np.sort(rng.permutation(given)[: round(DRAWN_SHARE * len(given))])
    tried = given[:0]
    seconds, gains = pool.trials.step_seconds, dict[int, float]()
    while len(tried) < min(BUDGET, len(given)):
        rest = np.setdiff1d(given, tried)
        count = ROUND
        if designs and len(tried) == 0:
            rest, count = rest[pool.designed[rest]], DESIGNS
        predicted, std = (
            column[rest] for column in _predicted(pool, simulator, rule, tried, known)
        )
        best = float(seconds[tried].min()) if len(tried) else None
        if best is not None and rule.learned:
            gains[len(tried)] = float(expected_improvement(predicted, std, best).max() / best)
        promise = promise_of(predicted, std, rule.acquisition, best)
        before = pool.shares[tried] if rule.counted else None
        count = min(count, len(rest), BUDGET - len(tried))
        picks = rest[select(promise, pool.shares[rest], count, rule.alpha, before)]
        tried = np.concatenate((tried, picks))
    return ReplayedTuning(tuple(seconds[tried].tolist()), float(seconds[given].min()), gains)


def _predicted(
    pool: ReplayPool,
    simulator: LearnedSimulator,
    rule: SelectionRule,
    tried: I64,
    known: dict[bytes, Predictions],
) -> Predictions:
    """Seconds of all strategies of the pool, and their doubt, after the trials."""
    features = pool.trials.features
    if not rule.learned:
        return features.base_seconds, np.zeros(len(features))
    name = tried.tobytes()
    if name not in known:
        learner = deepcopy(simulator)
        if len(tried):
            learner.refit_features(pool.trials.take(tried))
        known[name] = learner.predict_features(pool.trials.domain, features)
    return known[name]
