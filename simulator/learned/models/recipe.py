"""How a model is made: data that cards, commands and other processes carry, and a seed."""

from dataclasses import dataclass
from typing import Literal

from autosync.simulator.learned.models.ensemble_model import (EnsembleModel)
from autosync.simulator.learned.features.strategy_features import (PARTS, FeaturePart)
from autosync.simulator.learned.models.learned_model import (GaussianModel, LinearModel, LearnedModel)
from autosync.simulator.learned.models.network_model import (NetworkModel)
from autosync.simulator.learned.networks.network_training import (TrainingSettings)

Kind = Literal["linear", "gaussian", "lstm", "gat", "ensemble"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model to be made from a seed. parts, on_base: of linear models and networks. layers,
    width: of an LSTM."""

    kind: Kind
    parts: tuple[FeaturePart, ...] = PARTS
    on_base: bool = True
    layers: int = 1
    width: int = 64

    def __call__(self, seed: int) -> LearnedModel:
        training = TrainingSettings(seed=seed)
        if self.kind == "linear":
            return LinearModel(self.parts, self.on_base)
        if self.kind == "gaussian":
            return GaussianModel()
        if self.kind == "ensemble":
            return EnsembleModel(training)
        return NetworkModel(self.kind, training, self.parts, self.on_base, self.layers, self.width)


def recipe_of(model: LearnedModel) -> tuple[Recipe, int]:
    """What makes an untrained model like this one: its recipe and its seed, 0 where there is no
    chance in it."""
    if isinstance(model, LinearModel):
        return Recipe("linear", model.parts, model.on_base), 0
    if isinstance(model, GaussianModel):
        return Recipe("gaussian"), 0
    if isinstance(model, EnsembleModel):
        return Recipe("ensemble"), model.training.seed
    assert isinstance(model, NetworkModel)
    recipe = Recipe(model.kind, model.parts, model.on_base, model.layers, model.width)
    return recipe, model.training.seed
