"""Every model gives its arrays, says what they must be like, and loads them again."""

import numpy as np
import pytest

from autosync.errors import InvalidInput
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.models.ensemble import EnsembleModel
from autosync.simulator.learned.models.gaussian_process import GaussianModel
from autosync.simulator.learned.models.learned_model import LabelledTrials, LearnedModel, make_model
from autosync.simulator.learned.models.model_arrays import check_arrays
from autosync.simulator.learned.models.trees import TreesModel
from autosync.simulator.learned.networks.network_model import NetworkModel
from tests.simulator.learned.worlds import invented_seconds, small_domain, some_strategies, taught

MODELS: tuple[LearnedModel, ...] = (
    GaussianModel(),
    TreesModel(),
    NetworkModel("lstm"),
    NetworkModel("gat"),
    EnsembleModel(),
)
KERNEL = {f"kernel.{name}" for name in ("center", "scale", "setting", "variance")}
OWN = {f"own.{name}" for name in ("descriptors", "source", "summary", "residual", "speed")}
FOREST = {f"forest.{name}" for name in ("column", "left", "right", "threshold")}
SCALINGS = {"portions.center", "portions.scale", "summary.center", "summary.scale"}
HEAD = {"network.head.0.bias", "network.head.0.weight", "network.head.2.bias"}
FILED: dict[str, set[str]] = {
    "gaussian": KERNEL | OWN,
    "trees": FOREST | OWN,
    "lstm": SCALINGS | HEAD | {"network.lstm.weight_hh_l0", "network.encoder.2.weight"},
    "gat": SCALINGS | HEAD | {"network.first.att_src", "network.second.bias"},
    "ensemble": {"weights", "trees0.sources.residual"}
    | {f"{kind}0.{name}" for kind in ("lstm", "gat") for name in SCALINGS},
}
"""Names that files hold: they stay while FEATURE_VERSION does."""


@pytest.fixture(scope="module")
def trials() -> LabelledTrials:
    domain = small_domain(layers=3)
    population = some_strategies(domain, 48)
    seconds = invented_seconds(domain, population)
    return LabelledTrials(domain, features_of(domain, population), seconds)


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.recipe.kind)
def fitted(request: pytest.FixtureRequest, trials: LabelledTrials) -> LearnedModel:
    model: LearnedModel = request.param
    taught(model, trials)
    return model


def untrained(model: LearnedModel) -> LearnedModel:
    return make_model(model.recipe, model.seed)


def test_what_was_never_trained_has_no_arrays_but_weights() -> None:
    for model in (untrained(model) for model in MODELS):
        arrays = model.arrays()
        assert arrays.keys() <= {"weights"}
        check_arrays(arrays, model.array_forms(arrays))


def test_the_names_in_files_stay(fitted: LearnedModel) -> None:
    names = fitted.arrays().keys()
    assert names >= FILED[fitted.recipe.kind]
    if fitted.recipe.kind in ("gaussian", "trees"):
        assert names == FILED[fitted.recipe.kind]


def test_arrays_load_into_a_model_that_scores_alike(
    fitted: LearnedModel, trials: LabelledTrials
) -> None:
    loaded, arrays = untrained(fitted), fitted.arrays()
    check_arrays(arrays, loaded.array_forms(arrays))
    loaded.load(arrays)
    for found, expected in zip(
        loaded.scores_with_std(trials.domain, trials.features),
        fitted.scores_with_std(trials.domain, trials.features),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


def tried(model: LearnedModel) -> list[str]:
    """Names of all arrays; of an ensemble one of each member, which has its own turn."""
    names = list(model.arrays())
    if model.recipe.kind != "ensemble":
        return names
    return list({name.partition(".")[0]: name for name in names}.values())


def test_every_array_is_needed_and_has_its_shape_and_type(fitted: LearnedModel) -> None:
    arrays, model = fitted.arrays(), untrained(fitted)
    for name in tried(fitted):
        array = arrays[name]
        less = {other: arrays[other] for other in arrays if other != name}
        with pytest.raises(InvalidInput, match=r"is missing|do not fit"):
            check_arrays(less, model.array_forms(less))
        for wrong in (array[..., None], np.zeros(array.shape, np.int8)):
            changed = arrays | {name: wrong}
            with pytest.raises(InvalidInput, match=rf"'{name}' is |do not fit"):
                check_arrays(changed, model.array_forms(changed))


def test_values_that_no_fit_gives_are_refused(fitted: LearnedModel) -> None:
    arrays, model = fitted.arrays(), untrained(fitted)
    for name in tried(fitted):
        array = arrays[name]
        wrong = -2 if np.issubdtype(array.dtype, np.integer) else np.nan
        nowhere = arrays | {name: np.full_like(array, wrong)}
        with pytest.raises(InvalidInput, match=r"not finite|not positive|names|is no tree"):
            check_arrays(nowhere, model.array_forms(nowhere))
