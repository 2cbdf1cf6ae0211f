"""Learned simulators: `autosync.simulator.simulator_contract.Learner` around a model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population
from autosync.simulator.extension_prediction import restated_strategies
from autosync.simulator.learned.features.strategy_features import (
    StrategyFeatures,
    feature_chunks,
    features_of,
    joined_features,
)
from autosync.simulator.learned.models.gaussian_process import GaussianModel
from autosync.simulator.learned.models.learned_model import LabelledTrials, LearnedModel
from autosync.simulator.learned.models.model_arrays import (
    ArrayFields,
    ArrayForm,
    Arrays,
    not_falling,
    not_negative,
    rising,
)

F64 = NDArray[np.float64]

COVERAGE = 0.9
"""Of the interval."""
FEWEST_FOR_CURVE = 8
"""Below this many trials only the level is fitted, not the curve."""
BELIEVED_TRIALS = 2.0
"""What the level that other domains taught counts beside a domain's first trials. After torch's DDP
alone, median excesses of the bundled domains' picks are least in size from 1 to 4 (3.5 % with
transferred trees; 4.3 % without that trial, 4.5 % where it alone decides)."""
UNTRIED_MARGIN = 0.5
"""Half width of the interval without any trial, in log seconds (a factor of 1.65): the error of
the timeline on hardware whose constants nobody probed."""


@dataclass(frozen=True, slots=True)
class Calibration(ArrayFields):
    """scores, log_seconds f64[K]: knots of a strictly rising curve, slope 1 outside of them.

    margin: half width of the interval, in log seconds.
    """

    scores: F64
    log_seconds: F64
    margin: float

    def seconds(self, scores: F64) -> F64:
        """Scores are log seconds up to a monotone curve; `(n,)` to `(n,)`, in the same order."""
        low, high = self.scores[0], self.scores[-1]
        inside = np.interp(scores, self.scores, self.log_seconds)
        beyond = np.minimum(scores - low, 0.0) + np.maximum(scores - high, 0.0)
        result: F64 = np.exp(inside + beyond)
        return result

    @staticmethod
    def array_forms(given: Arrays) -> dict[str, ArrayForm]:
        """A curve has as many knots as it has scores."""
        scores = given.get("scores")
        knots = max(scores.size, 1) if scores is not None else 1
        return {
            "scores": ArrayForm((knots,), rule=rising),
            "log_seconds": ArrayForm((knots,), rule=not_falling),
            "margin": ArrayForm((1,), rule=not_negative),
        }


UNCALIBRATED = Calibration(np.zeros(1), np.zeros(1), UNTRIED_MARGIN)
"""Scores are taken for log seconds."""


def calibrate(
    scores: F64,
    step_seconds: F64,
    left_out: NDArray[np.bool_],
    before: Calibration = UNCALIBRATED,
) -> Calibration:
    """Isotonic regression of log seconds on scores, joined through the middles of its blocks. Of
    fewer trials than that takes the level alone, between theirs and what was believed before,
    which counts BELIEVED_TRIALS; how far it errs is still what other domains taught.

    left_out `(n,)`: trials that the scores were not fitted to; they alone set the interval (split
    conformal: the COVERAGE quantile of their errors, of n + 1 for n are finite).
    """
    from scipy.optimize import isotonic_regression  # loads for long; rankings fit nothing

    target = np.log(step_seconds)
    if len(scores) < FEWEST_FOR_CURVE:
        level = float(np.median(target - scores))
        if before is not UNCALIBRATED:
            believed = float(np.median(np.log(before.seconds(scores)) - scores))
            share = BELIEVED_TRIALS / (BELIEVED_TRIALS + len(scores))
            level += share * (believed - level)
        return Calibration(np.zeros(1), np.array([level]), before.margin)
    order = np.argsort(scores, kind="stable")
    fit = isotonic_regression(target[order])
    block = np.repeat(np.arange(len(fit.blocks) - 1), np.diff(fit.blocks))
    counts = np.bincount(block)
    knots = np.bincount(block, weights=scores[order]) / counts
    levels = np.bincount(block, weights=target[order]) / counts
    steps_up = np.concatenate(([True], np.diff(knots) > 1e-12))
    curve = Calibration(knots[steps_up], levels[steps_up], 0.0)
    judged = (
        left_out if left_out.sum() >= FEWEST_FOR_CURVE else np.ones(len(scores), dtype=np.bool_)
    )
    errors = np.sort(np.abs(target - np.log(curve.seconds(scores)))[judged])
    rank = min(int(np.ceil(COVERAGE * (len(errors) + 1))), len(errors))
    return Calibration(curve.scores, curve.log_seconds, float(errors[rank - 1]))


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
