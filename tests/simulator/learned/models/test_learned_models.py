"""Learned simulators on invented measurements (`worlds`): what they must and must not learn."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np
import pytest
import torch

from autosync.simulator.learned.features import strategy_features
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulators import LearnedSimulator, gaussian_simulator
from autosync.simulator.learned.models.ensemble import EnsembleModel
from autosync.simulator.learned.models.gaussian_process import GaussianModel
from autosync.simulator.learned.models.learned_model import LabelledTrials, LearnedModel, make_model
from autosync.simulator.learned.models.recipe import ModelKind, NetworkKind, Recipe
from autosync.simulator.learned.models.trees import TreesModel
from autosync.simulator.learned.networks import network_training
from autosync.simulator.learned.networks.network_model import NetworkModel
from autosync.simulator.learned.networks.network_training import TrainingSettings
from autosync.simulator.ranking_accuracy import pairwise_accuracy
from autosync.simulator.simulator_contract import Learner
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from tests.simulator.learned.worlds import invented_seconds, small_domain, some_strategies, taught

KNOWN, UNSEEN = np.arange(100), np.arange(100, 150)

MAKERS: dict[str, Callable[[], LearnedModel]] = {
    "gaussian": GaussianModel,
    "trees": TreesModel,
    "ensemble": EnsembleModel,
}
"""What one domain's trials teach; networks learn from other domains alone."""


@pytest.fixture(scope="module")
def trials() -> LabelledTrials:
    domain = small_domain()
    population = some_strategies(domain, 150)
    features = features_of(domain, population)
    return LabelledTrials(domain, features, invented_seconds(domain, population))


@pytest.fixture(scope="module")
def fitted(trials: LabelledTrials) -> Callable[[str], LearnedSimulator]:
    """Each fitted to KNOWN once; not to be fitted again."""

    @cache
    def fit(name: str) -> LearnedSimulator:
        simulator = LearnedSimulator(MAKERS[name]())
        simulator.refit_features(trials.take(KNOWN))
        return simulator

    return fit


def test_most_unseen_measurements_lie_inside_their_interval(
    fitted: Callable[[str], LearnedSimulator], trials: LabelledTrials
) -> None:
    unseen = some_strategies(trials.domain, 150).take(UNSEEN)
    low, high = fitted("gaussian").predict_interval(trials.domain, unseen)
    seconds = trials.take(UNSEEN).step_seconds
    assert (low < high).all()
    assert ((low <= seconds) & (seconds <= high)).mean() >= 0.8


def unseen_accuracy(simulator: LearnedSimulator, trials: LabelledTrials) -> float:
    unseen = trials.take(UNSEEN)
    predicted, _ = simulator.predict_features(trials.domain, unseen.features)
    return pairwise_accuracy(predicted, unseen.step_seconds)


def timeline_accuracy(trials: LabelledTrials) -> float:
    unseen = trials.take(UNSEEN)
    return pairwise_accuracy(unseen.features.base_seconds, unseen.step_seconds)


@pytest.mark.parametrize("kind", get_args(ModelKind))
def test_without_trials_every_simulator_is_the_timeline(kind: ModelKind) -> None:
    recipe = Recipe(kind)
    domain = small_domain()
    population = some_strategies(domain, 6)
    model = make_model(recipe, 7)
    assert model.recipe == recipe
    assert model.seed in (0, 7)
    simulator = LearnedSimulator(model)
    assert isinstance(simulator, Learner)
    expected = TimelineSimulator().predict(domain, population)
    np.testing.assert_allclose(simulator.predict(domain, population), expected, rtol=1e-12)


def test_the_default_is_the_gaussian_process() -> None:
    assert gaussian_simulator().name == "timeline+gaussian"


@pytest.mark.parametrize("name", MAKERS)
def test_trials_teach_what_the_timeline_does_not_know(
    name: str, trials: LabelledTrials, fitted: Callable[[str], LearnedSimulator]
) -> None:
    assert unseen_accuracy(fitted(name), trials) > timeline_accuracy(trials) + 0.02


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("count", [1, 3, 6, 10])
def test_few_trials_never_rank_worse_than_the_timeline(
    name: str, count: int, trials: LabelledTrials
) -> None:
    simulator = LearnedSimulator(MAKERS[name]())
    simulator.refit_features(trials.take(KNOWN[:count]))
    assert unseen_accuracy(simulator, trials) >= timeline_accuracy(trials)


@pytest.mark.parametrize("name", ["gaussian", "ensemble"])
@pytest.mark.parametrize("seed", range(2))
def test_labels_that_are_noise_leave_the_timeline_alone(
    name: str, seed: int, trials: LabelledTrials
) -> None:
    """Where the timeline is right up to noise, learning must not hurt: at most a pair in 300."""
    rng = np.random.default_rng(seed)
    right = trials.features.base_seconds
    noisy = right * np.exp(0.05 * rng.standard_normal(len(right)))
    simulator = LearnedSimulator(MAKERS[name]())
    simulator.refit_features(LabelledTrials(trials.domain, trials.features, noisy))
    predicted, _ = simulator.predict_features(trials.domain, trials.features)
    assert pairwise_accuracy(predicted, right) >= 1.0 - 1 / 300


@pytest.mark.parametrize("name", MAKERS)
def test_a_fit_is_the_same_every_time(name: str, trials: LabelledTrials) -> None:
    found = []
    for _ in range(2):
        simulator = LearnedSimulator(MAKERS[name]())
        simulator.refit_features(trials.take(KNOWN))
        found.append(simulator.predict_features(trials.domain, trials.features)[0])
    np.testing.assert_array_equal(found[0], found[1])
    ratio = found[0] / trials.features.base_seconds
    assert np.ptp(ratio) > 1e-3 * ratio.mean()


@pytest.mark.parametrize("kind", ["lstm", "gat"])
def test_training_is_the_same_every_time_and_leaves_random_state_and_threads_alone(
    kind: NetworkKind, trials: LabelledTrials
) -> None:
    threads, found = torch.get_num_threads(), []
    for _ in range(2):
        torch.manual_seed(torch.seed())
        before, model = torch.get_rng_state(), NetworkModel(kind)
        model.training = TrainingSettings(epochs=3)
        model.pretrain([trials.take(KNOWN[:30])], np.ones(1))
        assert torch.equal(torch.get_rng_state(), before)
        found.append(model.scores(trials.domain, trials.features))
    np.testing.assert_array_equal(found[0], found[1])
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", MAKERS)
def test_fitting_again_starts_anew(name: str, trials: LabelledTrials) -> None:
    once, twice = (LearnedSimulator(MAKERS[name]()) for _ in range(2))
    twice.refit_features(trials.take(KNOWN[:40]))
    twice.refit_features(trials.take(KNOWN))
    once.refit_features(trials.take(KNOWN))
    np.testing.assert_array_equal(
        once.predict_features(trials.domain, trials.features)[0],
        twice.predict_features(trials.domain, trials.features)[0],
    )


@pytest.mark.parametrize("kind", ["lstm", "gat"])
def test_a_population_is_predicted_in_chunks_as_whole(
    kind: NetworkKind, trials: LabelledTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = NetworkModel(kind)
    taught(model, trials.take(KNOWN[:30]))
    simulator = LearnedSimulator(model)
    population = some_strategies(trials.domain, 12, seed=9)
    whole = simulator.predict(trials.domain, population)
    scores = simulator.model.scores(trials.domain, features_of(trials.domain, population))
    timeline = TimelineSimulator().predict(trials.domain, population)
    assert np.ptp(scores - np.log(timeline)) > 1e-3
    monkeypatch.setattr(strategy_features, "CHUNK", 5)
    monkeypatch.setattr(strategy_features, "SHARD_CHUNK", 5)
    monkeypatch.setattr(network_training, "NETWORK_CHUNK", 2)
    np.testing.assert_allclose(simulator.predict(trials.domain, population), whole, rtol=1e-6)


def test_seconds_are_calibrated_and_intervals_hold(
    trials: LabelledTrials, fitted: Callable[[str], LearnedSimulator]
) -> None:
    unseen = trials.take(UNSEEN)
    seconds, std = fitted("gaussian").predict_features(trials.domain, unseen.features)
    errors = np.abs(np.log(seconds / unseen.step_seconds))
    base = np.abs(np.log(unseen.features.base_seconds / unseen.step_seconds))
    assert np.median(errors) < 0.5 * np.median(base)
    inside = (errors <= 1.645 * std).mean()
    assert 0.75 <= inside <= 1.0
    assert std.max() < np.median(base)


def test_doubt_grows_away_from_the_trials(trials: LabelledTrials) -> None:
    model = GaussianModel()
    model.fit(trials.take(KNOWN))
    near = model.scores_with_std(trials.domain, trials.take(KNOWN).features)[1]
    unseen = trials.take(UNSEEN).features
    shifted = unseen.summary + 3.0 * unseen.summary.std(axis=0)
    far = model.scores_with_std(trials.domain, replace(unseen, summary=shifted))[1]
    assert far.mean() > near.mean()


@pytest.mark.parametrize("name", MAKERS)
def test_predictions_are_the_same_with_their_doubt_and_without(
    name: str, trials: LabelledTrials, fitted: Callable[[str], LearnedSimulator]
) -> None:
    population = some_strategies(trials.domain, 20, seed=3)
    alone = fitted(name).predict(trials.domain, population)
    np.testing.assert_array_equal(
        alone, fitted(name).predict_with_std(trials.domain, population)[0]
    )
    assert not len(fitted(name).predict(trials.domain, population.take([])))
