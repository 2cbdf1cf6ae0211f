"""A Gaussian process and networks: each network leaves out another third of the trials."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from autosync.domain import Domain
from simulator.learned.features import Features
from simulator.learned.models import Fitted, GaussianModel, Labelled
from simulator.learned.network_model import (
    FEWEST_FOR_NETWORK,
    FOLDS,
    NetworkKind,
    NetworkModel,
    fold_of,
)
from simulator.learned.ranking import pair_errors, pair_losses, slower_pairs
from simulator.learned.training import Training

F64 = NDArray[np.float64]

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the networks in the correction, to choose from."""
CONFIDENCE = 2.0
"""Standard errors by which any share must misrank fewer pairs than none."""


class EnsembleModel:
    """score = (1 - weight) * Gaussian process + weight * mean of the networks.

    The weight is chosen on trials that none of the parts was fitted to, so networks that learned
    nothing are left out; fewer trials than those take leave it as it was (half after `pretrain`).
    Doubt is the process's own and the disagreement of the parts.
    """

    name = "ensemble"
    with_portions = True

    def __init__(self, kind: NetworkKind = "lstm", training: Training | None = None) -> None:
        self.training = training or Training()
        self.gaussian = GaussianModel()
        seeds = (self.training.seed + fold for fold in range(FOLDS))
        self.members = [NetworkModel(kind, replace(self.training, seed=seed)) for seed in seeds]
        self.weight = 0.0

    def fit(self, trials: Labelled) -> Fitted:
        gaussian = self.gaussian.fit(trials)
        n = len(trials.features)
        if n < FEWEST_FOR_NETWORK:
            return Fitted(self._blend(gaussian.scores, trials), gaussian.held)
        folds = fold_of(n, FOLDS, self.training.seed)
        left_out = np.zeros(n)
        for fold, member in enumerate(self.members):
            held = folds == fold
            left_out[held] = member.fit_held(trials, np.flatnonzero(held))[held]
        self.weight, scores = _best_weight(gaussian.scores, left_out, trials)
        return Fitted(scores, np.ones(n, dtype=np.bool_))

    def _blend(self, gaussian: F64, trials: Labelled) -> F64:
        if self.weight == 0.0:
            return gaussian
        parts = [member.scores(trials.domain, trials.features)[0] for member in self.members]
        networks: F64 = np.mean(parts, axis=0)
        return (1.0 - self.weight) * gaussian + self.weight * networks

    def pretrain(self, sources: Sequence[Labelled], importance: F64) -> None:
        self.gaussian.pretrain(sources, importance)
        for member in self.members:
            member.pretrain(sources, importance)
        self.weight = 0.5

    def scores(self, domain: Domain, features: Features) -> tuple[F64, F64]:
        gaussian, doubt = self.gaussian.scores(domain, features)
        if self.weight == 0.0:
            return gaussian, doubt
        parts = np.array([member.scores(domain, features)[0] for member in self.members])
        networks = parts.mean(axis=0)
        mean = (1.0 - self.weight) * gaussian + self.weight * networks
        spread = (1.0 - self.weight) * (gaussian - mean) ** 2
        spread += self.weight * ((parts - mean) ** 2).mean(axis=0)
        return mean, np.sqrt(spread + ((1.0 - self.weight) * doubt) ** 2)


def _best_weight(gaussian: F64, networks: F64, trials: Labelled) -> tuple[float, F64]:
    """The share of the networks with the least ranking loss, and the scores under it."""
    labels = torch.from_numpy(trials.step_seconds / np.median(trials.step_seconds))
    slower = slower_pairs(labels, torch.from_numpy(trials.features.partitions))
    choices = [(1.0 - weight) * gaussian + weight * networks for weight in WEIGHTS]
    tensors = [torch.from_numpy(scores) for scores in choices]
    best = int(np.argmin([float(pair_losses(scores, slower).mean()) for scores in tensors]))
    gain = (pair_errors(tensors[0], slower) - pair_errors(tensors[best], slower)).numpy()
    if gain.mean() <= CONFIDENCE * gain.std() / np.sqrt(len(gain)):
        best = 0
    return WEIGHTS[best], choices[best]
