"""The models that an evaluation compares."""

from collections.abc import Callable

from autosync.simulator.learned.models.learned_model import (LearnedModel)
from autosync.simulator.learned.models.recipe import (Recipe)

MakeModel = Callable[[int], LearnedModel]
"""From a seed."""

SEEDED = frozenset({"lstm", "lstm 3 x 128", "gat", "ensemble"})
"""Columns whose models depend on a seed beyond the split; the others are closed forms."""


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
