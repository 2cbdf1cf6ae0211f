"""What is compared: the timeline, a linear model, and the Gaussian process, with what other domains
taught and without."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from autosync.simulator.learned.encoders import EncoderKind
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.gaussian_process import LARGEST, source_trials
from autosync.simulator.learned.learned_simulator import LabelledTrials, LearnedSimulator
from autosync.simulator.learned.training import simulator_from

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

Predictor = Callable[[StrategyFeatures, I64, F64, I64], tuple[F64, F64]]
"""Of a domain: its strategies, those that were tried and their seconds, and those to predict; to
seconds and the standard deviation of their logarithm, `(asked,)` each."""


def timeline(features: StrategyFeatures, tried: I64, seconds: F64, asked: I64) -> tuple[F64, F64]:
    """At the level of the trials."""
    base = features.base_seconds
    level = np.exp(np.median(np.log(seconds / base[tried]))) if len(tried) else 1.0
    return level * base[asked], np.zeros(len(asked))


def process(sources: Sequence[LabelledTrials], encoder: EncoderKind | None = None) -> Predictor:
    """The learned simulator, which may know no other domain; then it has no encoder."""
    taught = simulator_from(sources, encoder) if sources else None

    def predict(
        features: StrategyFeatures, tried: I64, seconds: F64, asked: I64
    ) -> tuple[F64, F64]:
        known = (
            LearnedSimulator(taught.kernel, taught.sources, taught.encoder)
            if taught
            else LearnedSimulator()
        )
        if len(tried):
            known.refit_features(features.take(tried), seconds)
        return known.predict_features(features.take(asked))

    return predict


def linear(sources: Sequence[LabelledTrials]) -> Predictor:
    """Ridge regression of log residuals on the same columns, all trials alike, its penalty chosen
    by leaving trials out."""

    def predict(
        features: StrategyFeatures, tried: I64, seconds: F64, asked: I64
    ) -> tuple[F64, F64]:
        known = [source_trials(each.features, each.step_seconds) for each in sources]
        if len(tried):
            known.append(source_trials(features.take(tried), seconds))
        if not known:
            return features.base_seconds[asked], np.zeros(len(asked))
        columns = np.concatenate([each.columns for each in known])
        model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(0, 5, 11)))
        model.fit(columns, np.concatenate([each.residual for each in known]))
        found = np.clip(model.predict(features.summary.astype(np.float32)), -LARGEST, LARGEST)
        base, level = features.base_seconds, 0.0
        if len(tried):
            level = np.median(np.log(seconds / base[tried]) - found[tried])
        return base[asked] * np.exp(found[asked] + level), np.zeros(len(asked))

    return predict


PREDICTORS: dict[str, Callable[[Sequence[LabelledTrials]], Predictor]] = {
    "timeline": lambda sources: timeline,
    "linear": linear,
    "learned": process,
    "lstm": partial(process, encoder="lstm"),
    "gat": partial(process, encoder="gat"),
}
"""By name: what knows these trials of other domains."""
