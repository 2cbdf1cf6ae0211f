"""The learned simulator: the timeline's seconds, corrected by a Gaussian process that knows the
trials of other domains and is updated by every trial of the domain at hand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population
from autosync.simulator.extension_prediction import restated_strategies
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
from autosync.simulator.timeline.timeline_simulator import before_seconds

if TYPE_CHECKING:
    from autosync.simulator.learned.encoders import Encoder

F64 = NDArray[np.float64]

UNTRIED_STD = 0.3
"""Log seconds, of strategies that the process does not judge."""
LEAST_LEFT = 0.5
"""Of the predicted seconds of an update's last batch: where a trial leaves less, its other batches
took so much less than predicted that it tells nothing about messages."""


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
        return self.predict_with_std(domain, population)[0]

    def predict_with_std(self, domain: Domain, population: Population) -> tuple[F64, F64]:
        """Seconds, and the standard deviation of their logarithm that the trials leave open,
        without the noise of a measurement, `(strategies,)` each.

        Strategies under `fully_shard` or with placed modules have the timeline's seconds at the
        domain's level: no trial has shown how they differ. Of an update of several batches the last
        one is corrected: to the others the timeline's seconds are added.
        """
        seconds, std, done = np.empty(len(population)), np.zeros(len(population)), 0
        for chunk in feature_chunks(_with_one_batch(domain), population, self.encoder is not None):
            rows = slice(done, done := done + len(chunk))
            mean, std[rows] = self._log_residuals(chunk)
            foreign = foreign_strategies(population.between(rows.start, rows.stop))
            if foreign.any():
                mean[foreign] = self.posterior(chunk.descriptor).level()
                std[rows][foreign] = UNTRIED_STD
            seconds[rows] = chunk.base_seconds * np.exp(mean)
            last = seconds[rows].copy()
            seconds[rows] += before_seconds(population.between(rows.start, rows.stop), domain)
            std[rows] *= last / seconds[rows]
        return seconds, std

    def predict_features(self, features: StrategyFeatures) -> tuple[F64, F64]:
        """`predict_with_std` for features at hand."""
        mean, std = self._log_residuals(features)
        return features.base_seconds * np.exp(mean), std

    def refit(self, domain: Domain, population: Population, step_seconds: F64) -> None:
        """Learn from measured strategies, `step_seconds` `(strategies,)`; those under torch's
        `fully_shard`, or in a domain of their own (`restated_strategies`), teach nothing about the
        others. Of an update of several batches, what the last one took is learned from
        (`LEAST_LEFT`)."""
        own = np.flatnonzero(~foreign_strategies(population))
        if not len(own):
            return
        tried = population.take(own)
        features = features_of(_with_one_batch(domain), tried, self.encoder is not None)
        last = step_seconds[own] - before_seconds(tried, domain)
        least = LEAST_LEFT if domain.accumulate > 1 else 0.0
        told = np.flatnonzero(last > least * features.base_seconds)
        if len(told):
            self.refit_features(features.take(told), last[told])

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

    def _log_residuals(self, features: StrategyFeatures) -> tuple[F64, F64]:
        columns = self._read(features).summary
        return self.posterior(features.descriptor).mean_and_std(columns)


def _with_one_batch(domain: Domain) -> Domain:
    """What a process knows is about an update's last batch, whose messages carry the touched rows
    and the factors of all batches."""
    if domain.accumulate == 1:
        return domain
    table = domain.variables
    variables = tuple(
        replace(variable, touched_rows=touched, factor_rows=rows)
        for variable, touched, rows in zip(
            domain.graph.variables,
            table.touched_rows.tolist(),
            table.factor_rows.tolist(),
            strict=True,
        )
    )
    return replace(domain, graph=replace(domain.graph, variables=variables), accumulate=1)


def foreign_strategies(population: Population) -> NDArray[np.bool_]:
    """Strategies that the process does not judge."""
    return (population.engine > 0) | restated_strategies(population)
