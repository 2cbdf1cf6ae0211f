"""A linear model of log residuals on the process's columns."""

from collections.abc import Sequence

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.gaussian_process import LARGEST, source_trials
from autosync.simulator.learned.learned_simulator import LabelledTrials
from benchmarks.evaluation.process import F64, I64, Predictor


def linear(sources: Sequence[LabelledTrials]) -> Predictor:
    """Ridge regression, all trials alike, its penalty chosen by leaving trials out."""

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
