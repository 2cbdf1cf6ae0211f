"""Which model a simulator learns with. Loads nothing: the command line offers these names."""

from dataclasses import dataclass
from typing import Literal

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
