"""All models at once: the sum of their corrections, weighed by their errors on trials left out."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.gaussian_model import GaussianModel
from autosync.simulator.learned.models.learned_model import (
    FittedScores,
    LabelledTrials,
    LearnedModel,
)
from autosync.simulator.learned.models.linear_model import LinearModel
from autosync.simulator.learned.models.model_arrays import (
    ArrayForm,
    Arrays,
    below,
    nested,
    shares_of_one,
)
from autosync.simulator.learned.models.network_model import (
    FEWEST_FOR_NETWORK,
    FOLDS,
    NetworkModel,
    fold_of,
)
from autosync.simulator.learned.models.recipe import NetworkKind, Recipe
from autosync.simulator.learned.models.ridge import FEWEST_FOR_RIDGE
from autosync.simulator.learned.models.robust_loss import RobustLoss, is_significant
from autosync.simulator.learned.models.stacking import stacked_weights
from autosync.simulator.learned.networks.network_training import TrainingSettings

F64 = NDArray[np.float64]

NETWORKS: tuple[NetworkKind, ...] = ("lstm", "gat")
CLOSED_FORMS = ("linear", "gaussian")
"""Parts that are fitted by a formula, and leave each trial out once in doing so."""
MEMBER_KINDS = (*CLOSED_FORMS, *NETWORKS)
"""What the weights are of, in their order."""


class EnsembleModel:
    """score = log seconds of the timeline + the sum of each part's correction times its weight.

    A part is a linear model, a Gaussian process, or the mean of FOLDS networks of a kind, each of
    which left out another third of the trials. weights f64[len(MEMBER_KINDS)]: as
    `stacked_weights` finds them on trials that no part was fitted to. start: the weights before
    any trial, 0, or equal after `pretrain`. The standard deviation is that of the parts'
    corrections (the timeline's 0 is one of them) and that of the closed forms, which err together.
    """

    with_shards = True
    recipe = Recipe("ensemble")

    def __init__(self, training: TrainingSettings | None = None) -> None:
        self.training = training or TrainingSettings()
        self.linear, self.gaussian = LinearModel(), GaussianModel()
        seeds = [self.training.seed + fold for fold in range(FOLDS)]
        self.networks = {
            kind: tuple(NetworkModel(kind, replace(self.training, seed=seed)) for seed in seeds)
            for kind in NETWORKS
        }
        self.start = self.weights = np.zeros(len(MEMBER_KINDS))

    @property
    def seed(self) -> int:
        return self.training.seed

    @property
    def members(self) -> tuple[tuple[LearnedModel, ...], ...]:
        """The models of each kind, in the order of MEMBER_KINDS."""
        return (self.linear,), (self.gaussian,), *self.networks.values()

    def fit(self, trials: LabelledTrials) -> FittedScores:
        base = np.log(trials.features.base_seconds)
        scores = [self.linear.fit(trials).scores, self.gaussian.fit(trials).scores]
        scores += [self._fit_left_out(kind, trials) for kind in NETWORKS]
        left_out = np.array(scores) - base
        self.weights = self._weigh(left_out, trials)
        return FittedScores(base + self.weights @ left_out, np.ones(len(base), dtype=np.bool_))

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        for models in self.members:
            for model in models:
                model.pretrain(sources, importance)
        self.start = self.weights = np.full(len(MEMBER_KINDS), 1.0 / len(MEMBER_KINDS))

    def scores(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        base = np.log(features.base_seconds)
        shares, corrections = [1.0 - self.weights.sum()], [np.zeros(len(base))]
        own_std = np.zeros(len(base))
        for weight, models in zip(self.weights, self.members, strict=True):
            for model in models if weight > 0 else ():
                scores, own = model.scores(domain, features)
                shares.append(weight / len(models))
                corrections.append(scores - base)
                own_std += shares[-1] * own
        mean: F64 = np.array(shares) @ np.array(corrections)
        variance: F64 = np.array(shares) @ (np.array(corrections) - mean) ** 2
        return base + mean, np.sqrt(variance + own_std**2)

    def arrays(self) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {"weights": self.weights}
        for prefix, model in self._named_members():
            found |= nested(prefix, model.arrays())
        return found

    def array_forms(self, given: Arrays) -> dict[str, ArrayForm]:
        found = {"weights": ArrayForm((len(MEMBER_KINDS),), rule=shares_of_one)}
        for prefix, model in self._named_members():
            found |= nested(prefix, model.array_forms(below(prefix, given)))
        return found

    def load(self, arrays: Arrays) -> None:
        self.start = self.weights = arrays["weights"]
        for prefix, model in self._named_members():
            model.load(below(prefix, arrays))

    def _named_members(self) -> Iterator[tuple[str, LearnedModel]]:
        """Every model by the prefix of their arrays: "linear0.", ..., "gat2."."""
        for name, models in zip(MEMBER_KINDS, self.members, strict=True):
            for number, model in enumerate(models):
                yield f"{name}{number}.", model

    def _fit_left_out(self, kind: NetworkKind, trials: LabelledTrials) -> F64:
        """Each trial's score by the network that left it out, `(n,)`; where trials are too few to
        learn from, the mean score of all of them as pretrained."""
        n, networks = len(trials.features), self.networks[kind]
        if n < FEWEST_FOR_NETWORK:
            pretrained: F64 = np.mean([each.fit(trials).scores for each in networks], axis=0)
            return pretrained
        folds, scores = fold_of(n, FOLDS, self.training.seed), np.empty(n)
        for fold, network in enumerate(networks):
            rows = np.flatnonzero(folds == fold)
            scores[rows] = network.fit_without(trials, rows)[rows]
        return scores

    def _weigh(self, left_out: F64, trials: LabelledTrials) -> F64:
        """The parts' weights: of all parts, else of the closed forms alone, else 0: the first that
        beats the timeline significantly. A pretrained ensemble need not."""
        if left_out.shape[1] < FEWEST_FOR_RIDGE:
            return self.start
        base_seconds = trials.features.base_seconds
        residual = np.log(trials.step_seconds / base_seconds)
        residual = residual - np.median(residual)
        centered = left_out - np.median(left_out, axis=1, keepdims=True)
        loss = RobustLoss(residual, base_seconds)
        for candidates in (MEMBER_KINDS, CLOSED_FORMS):
            of_these = np.array([name in candidates for name in MEMBER_KINDS])
            weights = stacked_weights(centered * of_these[:, None], residual, loss)
            gain = loss(residual) - loss(residual - weights @ centered)
            if self.start.any() or is_significant(gain, self.training.confidence):
                return weights
        return np.zeros(len(MEMBER_KINDS))
