"""Learned simulators: `autosync.simulator.simulator_contract.Learner` around a model."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population
from autosync.simulator.extension_prediction import restated_strategies
from autosync.simulator.learned.calibration import (
    UNCALIBRATED,
    UNTRIED_MARGIN,
    Calibration,
    calibrate,
)
from autosync.simulator.learned.features.strategy_features import (
    StrategyFeatures,
    feature_chunks,
    features_of,
    joined_features,
)
from autosync.simulator.learned.models.gaussian_model import GaussianModel
from autosync.simulator.learned.models.learned_model import LabelledTrials, LearnedModel

F64 = NDArray[np.float64]

SCORED = 512
"""Strategies at once, of models that read sums alone."""
NORMAL_QUANTILE = 1.645
"""Of a 90 % interval: its half width in standard deviations."""


class LearnedSimulator:
    """A model's scores, calibrated to seconds on the trials. Untrained, it is the timeline."""

    def __init__(self, model: LearnedModel) -> None:
        self.model = model
        self.name = f"timeline+{model.recipe.name}"
        self.calibration: Calibration = UNCALIBRATED
        self._begun_with: Calibration | None = None

    def predict(self, domain: Domain, population: Population) -> F64:
        """Seconds an iteration, `(strategies,)`. A strategy under `fully_shard`, or with placed
        modules, has the timeline's, on the same scale: no model has learned how they differ."""
        parts = [
            (self.calibration.seconds(self.model.scores(domain, chunk)), chunk.base_seconds)
            for chunk in self._chunks(domain, population)
        ]
        seconds, base = _joined(parts, 2)
        foreign = _foreign(population)
        seconds[foreign] = self.calibration.seconds(np.log(base[foreign]))
        return seconds

    def predict_with_std(self, domain: Domain, population: Population) -> tuple[F64, F64]:
        """The same, and the standard deviation of the logarithm of the seconds, `(strategies,)`
        each: of the model (what the trials leave open) and of its errors on trials left out, in
        squares."""
        parts = [
            (*self.predict_features(domain, chunk), chunk.base_seconds)
            for chunk in self._chunks(domain, population)
        ]
        seconds, std, base = _joined(parts, 3)
        foreign = _foreign(population)
        seconds[foreign] = self.calibration.seconds(np.log(base[foreign]))
        std[foreign] = UNTRIED_MARGIN / NORMAL_QUANTILE
        return seconds, std

    def _chunks(self, domain: Domain, population: Population) -> Iterator[StrategyFeatures]:
        return self._batches(feature_chunks(domain, population, self.model.with_shards))

    def _batches(self, chunks: Iterable[StrategyFeatures]) -> Iterator[StrategyFeatures]:
        """SCORED strategies or a little more at a time, where their features are small: scores are
        products of matrices, which take the longer the smaller these are."""
        waiting: list[StrategyFeatures] = []
        for chunk in chunks:
            waiting.append(chunk)
            if self.model.with_shards or sum(map(len, waiting)) >= SCORED:
                yield joined_features(waiting)
                waiting = []
        if waiting:
            yield joined_features(waiting)

    def predict_interval(self, domain: Domain, population: Population) -> tuple[F64, F64]:
        """Lower and upper seconds between which nine measurements of ten lie."""
        seconds, std = self.predict_with_std(domain, population)
        return seconds * np.exp(-NORMAL_QUANTILE * std), seconds * np.exp(NORMAL_QUANTILE * std)

    def predict_features(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        """`predict_with_std` for features at hand."""
        scores, std = self.model.scores_with_std(domain, features)
        noise = self.calibration.margin / NORMAL_QUANTILE
        return self.calibration.seconds(scores), np.hypot(std, noise)

    def refit(self, domain: Domain, population: Population, step_seconds: F64) -> None:
        """Learn from measured strategies, `step_seconds` `(strategies,)`; those under torch's
        `fully_shard`, or in a domain of their own (`restated_strategies`), teach nothing about the
        others."""
        own = np.flatnonzero((population.engine == 0) & ~restated_strategies(population))
        if not len(own):
            return
        population, step_seconds = population.take(own), step_seconds[own]
        features = features_of(domain, population, self.model.with_shards)
        self.refit_features(LabelledTrials(domain, features, step_seconds))

    def refit_features(self, trials: LabelledTrials) -> None:
        """`refit` for features at hand."""
        if self._begun_with is None:  # what other domains taught, if any
            self._begun_with = self.calibration
        fitted = self.model.fit(trials)
        self.calibration = calibrate(
            fitted.scores, trials.step_seconds, fitted.left_out, self._begun_with
        )


def _foreign(population: Population) -> NDArray[np.int64]:
    """Strategies that no model judges."""
    return np.flatnonzero((population.engine > 0) | restated_strategies(population))


def _joined(parts: Sequence[tuple[F64, ...]], columns: int) -> list[F64]:
    """The columns of the parts, of which there may be none."""
    return [np.concatenate([np.zeros(0), *(part[k] for part in parts)]) for k in range(columns)]


def gaussian_simulator() -> LearnedSimulator:
    """What `learned` stands for. Fits in tenths of a second; moves the order from 16 trials on."""
    return LearnedSimulator(GaussianModel())
