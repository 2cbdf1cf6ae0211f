"""The contract of a model: what it scores, how it fits, how sure it is, what it has learned;
and the recipes from which models are made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.model_arrays import ArrayForm, Arrays

F64 = NDArray[np.float64]


NetworkKind = Literal["lstm", "gat"]
MemberKind = Literal["gaussian", "trees", "lstm", "gat"]
ModelKind = Literal["gaussian", "trees", "lstm", "gat", "ensemble"]

CLOSED_FORMS: tuple[MemberKind, ...] = ("gaussian", "trees")
"""Fitted in seconds at most, each trial left out once in doing so; they load no torch."""
MEMBER_KINDS: tuple[MemberKind, ...] = (*CLOSED_FORMS, "lstm", "gat")
"""Parts of an ensemble, in the order of its weights."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`make_model` makes the model. members: of an ensemble."""

    kind: ModelKind
    members: tuple[MemberKind, ...] = MEMBER_KINDS

    @property
    def name(self) -> str:
        """The kind; of an ensemble of some members, theirs."""
        some = self.kind == "ensemble" and self.members != MEMBER_KINDS
        return "+".join(self.members) if some else self.kind


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
