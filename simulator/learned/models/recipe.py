"""How a model is made, as data: what cards, commands and other processes carry beside a seed."""

from dataclasses import dataclass
from typing import Literal

from autosync.simulator.learned.features.feature_names import FEATURE_PARTS, FeaturePart

NetworkKind = Literal["lstm", "gat"]
MemberKind = Literal["linear", "gaussian", "trees", "lstm", "gat"]
ModelKind = Literal["linear", "gaussian", "trees", "lstm", "gat", "ensemble"]

CLOSED_FORMS: tuple[MemberKind, ...] = ("linear", "gaussian", "trees")
"""Fitted in seconds at most, each trial left out once in doing so; they load no torch."""
MEMBER_KINDS: tuple[MemberKind, ...] = (*CLOSED_FORMS, "lstm", "gat")
"""Parts of an ensemble, in the order of its weights."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`model_factory.make_model` makes the model.

    parts: the features that a linear model or a network reads; on_base: whether it corrects the
    timeline or stands alone. layers, width: of an LSTM. members: of an ensemble.
    """

    kind: ModelKind
    parts: tuple[FeaturePart, ...] = FEATURE_PARTS
    on_base: bool = True
    layers: int = 1
    width: int = 64
    members: tuple[MemberKind, ...] = MEMBER_KINDS

    @property
    def name(self) -> str:
        """The kind; of an ensemble of some members, theirs."""
        some = self.kind == "ensemble" and self.members != MEMBER_KINDS
        return "+".join(self.members) if some else self.kind
