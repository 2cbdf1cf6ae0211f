"""From a recipe and a seed to an untrained model: the one table of the kinds there are."""

from autosync.simulator.learned.models.ensemble_model import EnsembleModel
from autosync.simulator.learned.models.gaussian_model import GaussianModel
from autosync.simulator.learned.models.learned_model import LearnedModel
from autosync.simulator.learned.models.linear_model import LinearModel
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.learned.models.trees_model import TreesModel


def make_model(recipe: Recipe, seed: int) -> LearnedModel:
    """The seed decides the weights that networks start from, and the splits of trees."""
    match recipe.kind:
        case "linear":
            return LinearModel(recipe.parts, recipe.on_base)
        case "gaussian":
            return GaussianModel()
        case "trees":
            return TreesModel(seed)
        case "ensemble":
            return EnsembleModel(members=recipe.members, seed=seed)
        case "lstm" | "gat":
            # loads torch, which the closed forms do without
            from autosync.simulator.learned.models.network_model import NetworkModel
            from autosync.simulator.learned.networks.network_training import TrainingSettings

            return NetworkModel(
                recipe.kind,
                TrainingSettings(seed=seed),
                recipe.parts,
                recipe.on_base,
                recipe.layers,
                recipe.width,
            )
