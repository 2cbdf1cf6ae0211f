"""How a model is made, as data: what cards, commands and other processes carry beside a seed."""

from dataclasses import dataclass
from typing import Literal

from autosync.simulator.learned.features.feature_names import FEATURE_PARTS, FeaturePart

NetworkKind = Literal["lstm", "gat"]
ModelKind = Literal["linear", "gaussian", "lstm", "gat", "ensemble"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """`model_factory.make_model` makes the model.

    parts: the features that a linear model or a network reads; on_base: whether it corrects the
    timeline or stands alone. layers, width: of an LSTM.
    """

    kind: ModelKind
    parts: tuple[FeaturePart, ...] = FEATURE_PARTS
    on_base: bool = True
    layers: int = 1
    width: int = 64
