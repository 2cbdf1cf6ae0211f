"""The learned simulator: the timeline's seconds, corrected by a Gaussian process that knows the
trials of other domains and is updated by every trial of the domain at hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population
from autosync.simulator.extension_prediction import restated_strategies
from autosync.simulator.learned.features.domain_descriptor import describe_domain
from autosync.simulator.learned.features.feature_names import SUMMARY_COLUMNS
from autosync.simulator.learned.features.strategy_features import (
    StrategyFeatures,
    feature_chunks,
    features_of,
)
from autosync.simulator.learned.gaussian_process import (
    Kernel,
    Posterior,
    SourceTrials,
    source_trials,
    standardisation,
    start_kernel,
)

if TYPE_CHECKING:
    from autosync.simulator.learned.encoders import Encoder

F64 = NDArray[np.float64]

NORMAL_QUANTILE = 1.645
"""Of a 90 % interval: its half width in standard deviations."""
UNTRIED_STD = 0.3
"""Log seconds, of strategies that the process does not judge."""


@dataclass(frozen=True, slots=True)
class LabelledTrials:
    """Measured strategies of one domain: their features and seconds."""

    domain: Domain
    features: StrategyFeatures
    step_seconds: F64

    def take(self, indices: NDArray[np.int64]) -> "LabelledTrials":
        """The trials of these indices, in their order."""
        return LabelledTrials(self.domain, self.features.take(indices), self.step_seconds[indices])


class LearnedSimulator:
    """kernel, sources: what other domains taught. Without them it is the timeline until its first
    trial, and takes the spread of its columns from its own trials. encoder: the network whose
    hidden state stands behind the columns of the sources.

    It learns from one domain at a time: `refit` forgets the trials before.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        sources: Sequence[SourceTrials] = (),
        encoder: "Encoder | None" = None,
    ) -> None:
        nothing = np.zeros(len(SUMMARY_COLUMNS))
        self.name = "learned"
        self.is_taught = kernel is not None
        self.kernel = kernel or start_kernel(nothing, nothing + np.inf)
        self.sources = tuple(sources)
        self.encoder = encoder
        self._prior: Posterior | None = None
        self._own: Posterior | None = None

    def predict(self, domain: Domain, population: Population) -> F64:
        """Seconds an iteration, `(strategies,)`."""
        return self._predicted(domain, population, with_std=False)[0]

    def predict_with_std(self, domain: Domain, population: Population) -> tuple[F64, F64]:
        """Seconds, and the standard deviation of their logarithm that the trials leave open,
        without the noise of a measurement, `(strategies,)` each.

        Strategies under `fully_shard` or with placed modules have the timeline's seconds at the
        domain's level: no trial has shown how they differ.
        """
        return self._predicted(domain, population, with_std=True)

    def predict_interval(self, domain: Domain, population: Population) -> tuple[F64, F64]:
        """Lower and upper seconds between which nine measurements of ten lie."""
        seconds, std = self.predict_with_std(domain, population)
        spread = NORMAL_QUANTILE * np.sqrt(
            std**2 + self.kernel.noise_variance(seconds / seconds.min(initial=np.inf))
        )
        return seconds * np.exp(-spread), seconds * np.exp(spread)

    def predict_features(self, features: StrategyFeatures) -> tuple[F64, F64]:
        """`predict_with_std` for features at hand."""
        columns = self._read(features).summary
        mean, std = self.posterior(features.descriptor).mean_and_std(columns)
        return features.base_seconds * np.exp(mean), std

    def refit(self, domain: Domain, population: Population, step_seconds: F64) -> None:
        """Learn from measured strategies, `step_seconds` `(strategies,)`; those under torch's
        `fully_shard`, or in a domain of their own (`restated_strategies`), teach nothing about the
        others."""
        own = np.flatnonzero(~_foreign(population))
        if len(own):
            features = features_of(domain, population.take(own), self.encoder is not None)
            self.refit_features(features, step_seconds[own])

    def refit_features(self, features: StrategyFeatures, step_seconds: F64) -> None:
        """`refit` for features at hand."""
        self._own, trials = None, source_trials(self._read(features), step_seconds)
        if not self.is_taught:
            self.kernel, self._prior = start_kernel(*standardisation([trials])), None
        self._own = self.posterior(features.descriptor).given(trials)

    def _read(self, features: StrategyFeatures) -> StrategyFeatures:
        return features if self.encoder is None else self.encoder.joined(features)

    def posterior(self, descriptor: F64) -> Posterior:
        """Of a domain: with its own trials, if it was the last to be learned from."""
        for known in (self._own, self._prior):
            if known is not None and (known.descriptor == descriptor).all():
                return known
        self._prior = Posterior(self.kernel, self.sources, descriptor)
        return self._prior

    def _predicted(self, domain: Domain, population: Population, with_std: bool) -> tuple[F64, F64]:
        seconds, std = np.empty(len(population)), np.zeros(len(population))
        posterior = self.posterior(describe_domain(domain))
        done = 0
        for chunk in map(self._read, feature_chunks(domain, population, self.encoder is not None)):
            rows = slice(done, done := done + len(chunk))
            if with_std:
                mean, std[rows] = posterior.mean_and_std(chunk.summary)
            else:
                mean = posterior.mean(chunk.summary)
            foreign = _foreign(population.between(rows.start, rows.stop))
            mean[foreign], std[rows][foreign] = posterior.level(), UNTRIED_STD
            seconds[rows] = chunk.base_seconds * np.exp(mean)
        return seconds, std


def _foreign(population: Population) -> NDArray[np.bool_]:
    """Strategies that the process does not judge."""
    return (population.engine > 0) | restated_strategies(population)
