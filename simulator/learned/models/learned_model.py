"""The contract of a model: what it scores, how it fits, how sure it is, what it has learned;
and the recipes from which models are made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.model_arrays import ArrayForm, Arrays
from autosync.simulator.learned.models.recipe import Recipe

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FittedScores:
    """How a model scores the trials it was fitted to.

    left_out bool[n]: where the score comes from a fit that left the trial out.
    """

    scores: F64
    left_out: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LabelledTrials:
    """Measured strategies of one domain: their features and seconds."""

    domain: Domain
    features: StrategyFeatures
    step_seconds: F64

    def take(self, indices: NDArray[np.int64]) -> "LabelledTrials":
        """The trials of these indices, in their order."""
        return LabelledTrials(self.domain, self.features.take(indices), self.step_seconds[indices])


class LearnedModel(Protocol):
    """Scores are log seconds up to a monotone curve.

    with_shards: whether `features.shards` is read, or the summary alone.
    """

    with_shards: bool

    @property
    def recipe(self) -> Recipe:
        """What makes an untrained model like this one."""
        ...

    @property
    def seed(self) -> int:
        """What it was made from beside the recipe; 0 where there is no chance in it."""
        ...

    def fit(self, trials: LabelledTrials) -> FittedScores:
        """Learn from the trials of one domain, starting from what `pretrain` learned."""
        ...

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        """Learn from several domains, `importance` `(domains,)` of each."""
        ...

    def scores(self, domain: Domain, features: StrategyFeatures) -> F64:
        """Of each strategy, `(n,)`."""
        ...

    def scores_with_std(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        """Scores and their standard deviation as far as the model knows it, `(n,)` each; the latter
        takes far longer."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What was learned, by name. What was never trained is left out. The names stand in
        checkpoints, so they stay."""
        ...

    def array_forms(self, given: Arrays) -> dict[str, ArrayForm]:
        """What `load` would read of `given`, which may be anything: names, shapes, types, values.

        Raises:
            InvalidInput: a model of this recipe is too large for them.
        """
        ...

    def load(self, arrays: Arrays) -> None:
        """Take over what `arrays` returned, into an untrained model. They have `array_forms`. The
        model goes on learning from there."""
        ...


def make_model(recipe: Recipe, seed: int) -> LearnedModel:
    """An untrained model. The seed decides the weights that networks start from, and the splits of
    trees."""
    match recipe.kind:  # models import this contract; networks load torch
        case "gaussian":
            from autosync.simulator.learned.models.gaussian_process import GaussianModel

            return GaussianModel()
        case "trees":
            from autosync.simulator.learned.models.trees import TreesModel

            return TreesModel(seed)
        case "ensemble":
            from autosync.simulator.learned.models.ensemble import EnsembleModel

            return EnsembleModel(members=recipe.members, seed=seed)
        case "lstm" | "gat":
            from autosync.simulator.learned.networks.network_model import NetworkModel
            from autosync.simulator.learned.networks.network_training import TrainingSettings

            return NetworkModel(recipe.kind, TrainingSettings(seed=seed))
