"""The models that an evaluation compares, as data: other processes make them too."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from simulator.learned.ensemble import EnsembleModel
from simulator.learned.features import PARTS, Part
from simulator.learned.models import GaussianModel, LinearModel, Model
from simulator.learned.network_model import NetworkModel
from simulator.learned.training import Training

MakeModel = Callable[[int], Model]
"""From a seed."""

SEEDED = frozenset({"lstm", "lstm 3 x 128", "gat", "ensemble"})
"""Columns whose models depend on a seed beyond the split; the others are closed forms."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model to be made from a seed. parts, on_base: of linear models and networks. layers,
    width: of an LSTM."""

    kind: Literal["linear", "gaussian", "lstm", "gat", "ensemble"]
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
            return EnsembleModel("lstm", training)
        return NetworkModel(self.kind, training, self.parts, self.on_base, self.layers, self.width)


def standard_models(published: bool = False) -> dict[str, MakeModel]:
    """The columns of Table 8.1. published: with the 3 x 128 LSTM, which takes minutes a fit."""
    models: dict[str, MakeModel] = {
        "linear, alone": Recipe("linear", ("predefined",), on_base=False),
        "linear": Recipe("linear"),
        "gaussian": Recipe("gaussian"),
        "lstm": Recipe("lstm"),
        "gat": Recipe("gat"),
        "ensemble": Recipe("ensemble"),
    }
    if published:
        models["lstm 3 x 128"] = Recipe("lstm", layers=3, width=128)
    return models
