"""Learned simulators: `autosync.simulator.simulator_contract.Learner` around a model."""

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import check_cancelled
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
)
from autosync.simulator.learned.models.gaussian_model import GaussianModel
from autosync.simulator.learned.models.learned_model import LabelledTrials, LearnedModel
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator

F64 = NDArray[np.float64]

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
        parts: list[tuple[F64, F64]] = []
        for chunk in feature_chunks(domain, population, self.model.with_shards):
            check_cancelled()
            parts.append(self.predict_features(domain, chunk))
        seconds = np.concatenate([part[0] for part in parts] or [np.zeros(0)])
        std = np.concatenate([part[1] for part in parts] or [np.zeros(0)])
        foreign = np.flatnonzero((population.engine > 0) | (population.placement > 0))
        if len(foreign):
            base = TimelineSimulator().predict(domain, population.take(foreign))
            seconds[foreign] = self.calibration.seconds(np.log(base))
            std[foreign] = UNTRIED_MARGIN / NORMAL_QUANTILE
        return seconds, std

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
