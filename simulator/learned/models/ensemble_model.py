"""All models at once: each part's correction counts by what it got right of trials left out."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.learned.features.strategy_features import (StrategyFeatures)
from autosync.simulator.learned.models.learned_model import (FittedScores, GaussianModel, LabelledTrials, LinearModel, LearnedModel)
from autosync.simulator.learned.models.network_model import (FEWEST_FOR_NETWORK, FOLDS, NetworkKind, NetworkModel, fold_of)
from autosync.simulator.learned.models.ridge import (FEWEST_TRIALS, RobustLoss, is_significant)
from autosync.simulator.learned.models.stacking import (stacked_weights)
from autosync.simulator.learned.networks.network_training import (TrainingSettings)

F64 = NDArray[np.float64]

NETWORKS: tuple[NetworkKind, ...] = ("lstm", "gat")
CLOSED = ("linear", "gaussian")
"""Parts that are fitted by a formula, and leave each trial out once in doing so."""
MEMBERS = (*CLOSED, *NETWORKS)
"""What the weights are of, in their order."""


class EnsembleModel:
    """score = log seconds of the timeline + the sum of each part's correction times its weight.

    A kind of network is FOLDS of them, each of which left out another third of the trials; their
    mean is the part. weights f64[len(MEMBERS)]: as `stacked_weights` finds them on trials that no
    part was fitted to; start: before any trial, none, or equal ones after `pretrain`. Doubt is
    the disagreement of the parts, the timeline's own word for one, and that of the closed forms,
    which err together.
    """

    name = "ensemble"
    with_shards = True

    def __init__(self, training: TrainingSettings | None = None) -> None:
        self.training = training or TrainingSettings()
        self.linear, self.gaussian = LinearModel(), GaussianModel()
        seeds = [self.training.seed + fold for fold in range(FOLDS)]
        self.networks = {
            kind: tuple(NetworkModel(kind, replace(self.training, seed=seed)) for seed in seeds)
            for kind in NETWORKS
        }
        self.start = self.weights = np.zeros(len(MEMBERS))

    @property
    def parts(self) -> tuple[tuple[LearnedModel, ...], ...]:
        """The models of each part, in the order of MEMBERS."""
        return (self.linear,), (self.gaussian,), *self.networks.values()

    def fit(self, trials: LabelledTrials) -> FittedScores:
        base = np.log(trials.features.base_seconds)
        scores = [self.linear.fit(trials).scores, self.gaussian.fit(trials).scores]
        scores += [self._fit_left_out(kind, trials) for kind in NETWORKS]
        left_out = np.array(scores) - base
        self.weights = self._weigh(left_out, trials)
        return FittedScores(base + self.weights @ left_out, np.ones(len(base), dtype=np.bool_))

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        for models in self.parts:
            for model in models:
                model.pretrain(sources, importance)
        self.start = self.weights = np.full(len(MEMBERS), 1.0 / len(MEMBERS))

    def scores(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        base = np.log(features.base_seconds)
        shares, corrections = [1.0 - self.weights.sum()], [np.zeros(len(base))]
        std = np.zeros(len(base))
        for weight, models in zip(self.weights, self.parts, strict=True):
            for model in models if weight > 0 else ():
                scores, own = model.scores(domain, features)
                shares.append(weight / len(models))
                corrections.append(scores - base)
                std += shares[-1] * own
        mean: F64 = np.array(shares) @ np.array(corrections)
        spread: F64 = np.array(shares) @ (np.array(corrections) - mean) ** 2
        return base + mean, np.sqrt(spread + std**2)

    def _fit_left_out(self, kind: NetworkKind, trials: LabelledTrials) -> F64:
        """Each trial's score by the network that left it out, `(n,)`; of trials too few to learn
        from, by all of them as other domains left them."""
        n, networks = len(trials.features), self.networks[kind]
        if n < FEWEST_FOR_NETWORK:
            untaught: F64 = np.mean([each.fit(trials).scores for each in networks], axis=0)
            return untaught
        folds, scores = fold_of(n, FOLDS, self.training.seed), np.empty(n)
        for fold, network in enumerate(networks):
            held = folds == fold
            scores[held] = network.fit_held(trials, np.flatnonzero(held))[held]
        return scores

    def _weigh(self, left_out: F64, trials: LabelledTrials) -> F64:
        """The parts' weights; what does not beat the timeline beyond doubt gets none, where
        nothing spoke for it before these trials. Networks that spoil a sound sum of the closed
        forms are left out of it."""
        if left_out.shape[1] < FEWEST_TRIALS:
            return self.start
        base_seconds = trials.features.base_seconds
        residual = np.log(trials.step_seconds / base_seconds)
        residual = residual - np.median(residual)
        said = left_out - np.median(left_out, axis=1, keepdims=True)
        loss = RobustLoss(residual, base_seconds)
        for heard in (MEMBERS, CLOSED):
            of_these = np.array([name in heard for name in MEMBERS])
            weights = stacked_weights(said * of_these[:, None], residual, loss)
            gain = loss(residual) - loss(residual - weights @ said)
            if self.start.any() or is_significant(gain, self.training.confidence):
                return weights
        return np.zeros(len(MEMBERS))
