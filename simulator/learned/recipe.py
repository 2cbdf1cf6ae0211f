"""How a model is made: data that cards, commands and other processes carry, and a seed."""

from dataclasses import dataclass
from typing import Literal

from autosync.simulator.learned.ensemble import EnsembleModel
from autosync.simulator.learned.features import PARTS, Part
from autosync.simulator.learned.learned_models import GaussianModel, LinearModel, Model
from autosync.simulator.learned.network_model import NetworkModel
from autosync.simulator.learned.training import Training

Kind = Literal["linear", "gaussian", "lstm", "gat", "ensemble"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model to be made from a seed. parts, on_base: of linear models and networks. layers,
    width: of an LSTM."""

    kind: Kind
    parts: tuple[Part, ...] = PARTS
    on_base: bool = True
    layers: int = 1
    width: int = 64

    def __call__(self, seed: int) -> Model:
        training = Training(seed=seed)
        if self.kind == "linear":
            return LinearModel(self.parts, self.on_base)
        if self.kind == "gaussian":
            return GaussianModel()
        if self.kind == "ensemble":
            return EnsembleModel(training)
        return NetworkModel(self.kind, training, self.parts, self.on_base, self.layers, self.width)


def recipe_of(model: Model) -> tuple[Recipe, int]:
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
