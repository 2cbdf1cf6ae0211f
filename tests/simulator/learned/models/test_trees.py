"""Trees as arrays: read as scikit-learn reads them, refused where they are none."""

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor

from autosync.errors import InvalidInput
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.models.learned_model import LabelledTrials
from autosync.simulator.learned.models.model_arrays import check_arrays
from autosync.simulator.learned.models.source_trials import kept_trials
from autosync.simulator.learned.models.trees import (
    COLUMNS_TRIED,
    LEAST_OF_A_LEAF,
    Forest,
    TreesModel,
    grown_forest,
)
from tests.simulator.learned.worlds import invented_seconds, small_domain, some_strategies

TREES = 8


@pytest.fixture(scope="module")
def sources() -> list[LabelledTrials]:
    found = []
    for seed, gbps in enumerate((1.5, 0.6)):
        domain = small_domain(gbps)
        population = some_strategies(domain, 60, seed)
        seconds = invented_seconds(domain, population)
        found.append(LabelledTrials(domain, features_of(domain, population, False), seconds))
    return found


def test_they_predict_as_scikit_learn_does(sources: list[LabelledTrials]) -> None:
    """Also on the thresholds themselves, where a rounded one would send a value the other way."""
    known = kept_trials(sources)
    regressor = ExtraTreesRegressor(
        TREES,
        min_samples_leaf=LEAST_OF_A_LEAF,
        max_features=COLUMNS_TRIED,
        random_state=3,
    ).fit(known.summary, known.residual, sample_weight=known.speed)
    forest = grown_forest(known.summary, known.residual, known.speed, 3, TREES)
    means = forest.leaf_means(forest.leaves(known.summary), known.residual, known.speed)
    unseen = features_of(sources[0].domain, some_strategies(sources[0].domain, 40, 9), False)
    table = np.concatenate([unseen.summary.astype(np.float32), known.summary])
    on_edges = table[:TREES].copy()
    for row, (columns, edges) in enumerate(zip(forest.column, forest.threshold, strict=True)):
        on_edges[row, columns] = edges
    for each in (table, on_edges):
        leaves = forest.leaves(each)
        np.testing.assert_array_equal(leaves, regressor.apply(each))
        found = means[np.arange(TREES), leaves].mean(axis=1)
        np.testing.assert_allclose(found, regressor.predict(each), rtol=1e-9, atol=1e-12)


def test_a_trial_is_left_out_of_what_its_leaves_say(sources: list[LabelledTrials]) -> None:
    """As if it had not been there when the leaves were filled."""
    model = TreesModel()
    model.pretrain(sources[:1], np.ones(1))
    trials = sources[1].take(np.arange(12))
    scores = model.fit(trials).scores
    whole, own = model.known, model.known.own
    assert own is not None
    base = np.log(trials.features.base_seconds)
    for trial in (0, 7):
        others = np.flatnonzero(np.arange(12) != trial)
        model.fit(trials.take(others))
        assert model.known.own is not None
        # at the level of all twelve, which moves a little with the trial
        shift = own.residual[others] - model.known.own.residual
        assert np.ptp(shift) < 1e-12
        descriptor = trials.features.descriptor
        known = whole.related(descriptor)
        table, residual, weights = known.summary, known.residual, known.weight
        rows = np.arange(len(table)) != len(table) - 12 + trial
        assert model.forest is not None
        leaves = model.forest.leaves(table)
        means = model.forest.leaf_means(leaves[rows], residual[rows], weights[rows])
        expected = means[np.arange(len(means)), leaves[~rows][0]].mean()
        assert scores[trial] - base[trial] == pytest.approx(expected, rel=1e-9)
        model.fit(trials)


@pytest.mark.parametrize("damage", ["backwards", "beyond", "no column", "no number"])
def test_what_is_no_tree_is_refused(damage: str, sources: list[LabelledTrials]) -> None:
    """A child before its node would be walked in circles."""
    known = kept_trials(sources)
    columns = known.summary.shape[1]
    forest = grown_forest(known.summary, known.residual, known.speed, 0, 2)
    arrays = {name: array.copy() for name, array in forest.arrays().items()}
    check_arrays(arrays, Forest.array_forms(columns, arrays))
    if damage == "backwards":
        arrays["left"][0, 0] = 0
    elif damage == "beyond":
        arrays["right"][0, 0] = arrays["right"].shape[1]
    elif damage == "no column":
        arrays["column"][0, 0] = columns
    else:
        arrays["threshold"][0, 0] = np.nan
    with pytest.raises(InvalidInput):
        check_arrays(arrays, Forest.array_forms(columns, arrays))
