"""Learned simulators: `autosync.simulator.simulator_contract.Learner` around a model."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population
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

    def predict(self, domain: Domain, population: Population) -> F64:
        """Seconds an iteration, `(strategies,)`."""
        return self.predict_with_std(domain, population)[0]

    def predict_with_std(self, domain: Domain, population: Population) -> tuple[F64, F64]:
        """Seconds, and the standard deviation of their logarithm, `(strategies,)` each: of the
        model (what the trials leave open) and of its errors on trials left out, in squares. A
        strategy under `fully_shard`, or with placed modules, has the timeline's, on the same scale
        of seconds: no model has learned how they differ."""
        if not len(population):
            return np.zeros(0), np.zeros(0)
        parts = [
            (*self.predict_features(domain, chunk), chunk.base_seconds)
            for chunk in self._batches(feature_chunks(domain, population, self.model.with_shards))
        ]
        seconds, std, base = (np.concatenate(column) for column in zip(*parts, strict=True))
        foreign = np.flatnonzero((population.engine > 0) | (population.placement > 0))
        if len(foreign):
            seconds[foreign] = self.calibration.seconds(np.log(base[foreign]))
            std[foreign] = UNTRIED_MARGIN / NORMAL_QUANTILE
        return seconds, std

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
        scores, std = self.model.scores(domain, features)
        noise = self.calibration.margin / NORMAL_QUANTILE
        return self.calibration.seconds(scores), np.hypot(std, noise)

    def refit(self, domain: Domain, population: Population, step_seconds: F64) -> None:
        """Learn from measured strategies, `step_seconds` `(strategies,)`; those under torch's
        `fully_shard`, or with placed modules, teach nothing about the others."""
        own = np.flatnonzero((population.engine == 0) & (population.placement == 0))
        if not len(own):
            return
        population, step_seconds = population.take(own), step_seconds[own]
        features = features_of(domain, population, self.model.with_shards)
        self.refit_features(LabelledTrials(domain, features, step_seconds))

    def refit_features(self, trials: LabelledTrials) -> None:
        """`refit` for features at hand."""
        fitted = self.model.fit(trials)
        self.calibration = calibrate(fitted.scores, trials.step_seconds, fitted.left_out)


def gaussian_simulator() -> LearnedSimulator:
    """What `learned` stands for. Fits in tenths of a second; moves the order from 16 trials on."""
    return LearnedSimulator(GaussianModel())
