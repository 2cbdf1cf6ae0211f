"""The models that an evaluation compares."""

from collections.abc import Callable
from functools import partial

from autosync.simulator.learned.models.learned_model import LearnedModel
from autosync.simulator.learned.models.model_factory import make_model
from autosync.simulator.learned.models.recipe import Recipe

MakeModel = Callable[[int], LearnedModel]
"""From a seed."""

SEEDED = frozenset({"lstm", "lstm 3 x 128", "gat", "ensemble"})
"""Columns whose models depend on a seed beyond the split; the others are closed forms."""


def maker(recipe: Recipe) -> MakeModel:
    """Can be sent to other processes."""
    return partial(make_model, recipe)


def standard_models(published_size: bool = False) -> dict[str, MakeModel]:
    """The columns of Table 8.1. published_size: with an LSTM of 3 x 128, which takes minutes a
    fit."""
    models: dict[str, MakeModel] = {
        "linear, alone": maker(Recipe("linear", ("predefined",), on_base=False)),
        "linear": maker(Recipe("linear")),
        "gaussian": maker(Recipe("gaussian")),
        "lstm": maker(Recipe("lstm")),
        "gat": maker(Recipe("gat")),
        "ensemble": maker(Recipe("ensemble")),
    }
    if published_size:
        models["lstm 3 x 128"] = maker(Recipe("lstm", layers=3, width=128))
    return models
