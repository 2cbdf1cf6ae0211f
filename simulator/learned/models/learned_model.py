"""The models behind a learned simulator: what they score, how they fit, how sure they are.

`network_model` holds those that read a strategy variable by variable, `ensemble` the mixture.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.learned.features.strategy_features import (PARTS, StrategyFeatures, FeaturePart, shared_columns, summary_columns)
from autosync.simulator.learned.models.gaussian_process import (FEWEST_TRIALS, GaussianProcess, fit_gaussian, fit_pooled_gaussian)
from autosync.simulator.learned.models.ridge import (RobustLoss, Ridge, fit_pooled, fit_ridge)

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FittedScores:
    """How a model scores the trials it was given. held bool[n]: those whose score did not come
    from a fit to themselves."""

    scores: F64
    held: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LabelledTrials:
    """Measured strategies of one domain: their features and seconds."""

    domain: Domain
    features: StrategyFeatures
    step_seconds: F64


class LearnedModel(Protocol):
    """Scores are log seconds up to a monotone curve."""

    name: str
    with_shards: bool

    def fit(self, trials: LabelledTrials) -> FittedScores:
        """Learn from the trials of one domain, starting from what was learned elsewhere."""
        ...

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        """Learn from several domains, `importance` `(domains,)` of each."""
        ...

    def scores(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        """Scores and their standard deviation as far as the model knows it, `(n,)` each."""
        ...


class LinearModel:
    """Ridge on the summary of a strategy; corrects the timeline, or stands alone (`on_base`)."""

    with_shards = False

    def __init__(self, parts: tuple[FeaturePart, ...] = PARTS, on_base: bool = True) -> None:
        self.name = "linear"
        self.parts, self.on_base = parts, on_base
        self.prior: Ridge | None = None
        self.ridge: Ridge | None = None

    def fit(self, trials: LabelledTrials) -> FittedScores:
        base, table = self._inputs(trials.features)
        target = np.log(trials.step_seconds) - base
        self.ridge, left_out = fit_ridge(table, target, self.prior)
        return FittedScores(base + left_out, np.ones(len(base), dtype=np.bool_))

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        inputs = [self._inputs(source.features) for source in sources]
        targets = [
            np.log(source.step_seconds) - base
            for source, (base, _) in zip(sources, inputs, strict=True)
        ]
        tables = [table for _, table in inputs]
        self.prior = fit_pooled(tables, targets, importance, shared_columns(self.parts))
        self.ridge = self.prior

    def scores(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        base, table = self._inputs(features)
        if self.ridge is None:
            return base, np.zeros(len(base))
        return base + self.ridge.correction(table), self.ridge.std(table)

    def _inputs(self, features: StrategyFeatures) -> tuple[F64, F64]:
        base = np.log(features.base_seconds) if self.on_base else np.zeros(len(features))
        return base, features.summary[:, summary_columns(self.parts)]


class GaussianModel:
    """A Gaussian process on the summary of a strategy; corrects the timeline.

    prior: of other domains, `share` of which is believed; own: of what that leaves unexplained.
    """

    name = "gaussian"
    with_shards = False

    def __init__(self) -> None:
        self.prior: GaussianProcess | None = None
        self.own: GaussianProcess | None = None
        self.share = 1.0

    def fit(self, trials: LabelledTrials) -> FittedScores:
        table = trials.features.summary
        base = np.log(trials.features.base_seconds)
        target = np.log(trials.step_seconds) - base
        before = self._before(table)
        if self.prior is not None and len(base) >= FEWEST_TRIALS:
            residual = target - np.median(target)
            loss = RobustLoss(residual, trials.features.base_seconds)
            known = self.prior.correction(table)
            misses = [residual - share * known for share in (0.0, 0.5, 1.0)]
            errors = [loss(miss - np.median(miss)).mean() for miss in misses]
            self.share = 0.5 * int(np.argmin(errors))
            before = self._before(table)
        self.own, left_out = fit_gaussian(table, target - before, trials.features.base_seconds)
        return FittedScores(base + before + left_out, np.ones(len(base), dtype=np.bool_))

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        tables = [source.features.summary for source in sources]
        seconds = [source.features.base_seconds for source in sources]
        targets = [
            np.log(source.step_seconds / base)
            for source, base in zip(sources, seconds, strict=True)
        ]
        self.prior = fit_pooled_gaussian(tables, targets, seconds, importance)
        self.own, self.share = None, 1.0

    def scores(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        table = features.summary
        score = np.log(features.base_seconds) + self._before(table)
        if self.own is not None:
            return score + self.own.correction(table), self.own.std(table)
        if self.prior is not None:
            return score, self.share * self.prior.std(table)
        return score, np.zeros(len(score))

    def _before(self, table: F64) -> F64:
        """What other domains say, log seconds."""
        if self.prior is None:
            return np.zeros(len(table))
        result: F64 = self.share * self.prior.correction(table)
        return result
