"""The learned simulator on invented measurements (`worlds`): what it must and must not learn."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.errors import InvalidInput
from autosync.population import concatenate
from autosync.simulator.learned.features import strategy_features
from autosync.simulator.learned.features.domain_descriptor import DESCRIPTOR, describe_domain
from autosync.simulator.learned.gaussian_process import NCCL
from autosync.simulator.learned.learned_simulator import LabelledTrials, LearnedSimulator
from autosync.simulator.learned.training import simulator_from
from autosync.simulator.ranking_accuracy import pairwise_accuracy
from autosync.simulator.simulator_contract import Learner
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.learned.worlds import (
    invented_seconds,
    labelled,
    other_domains,
    small_domain,
    some_strategies,
)

KNOWN, UNSEEN = np.arange(100), np.arange(100, 150)


@pytest.fixture(scope="module")
def trials() -> LabelledTrials:
    return labelled(small_domain(gbps=0.8, layers=5, width=112), 150, seed=7)


@pytest.fixture(scope="module")
def sources() -> list[LabelledTrials]:
    return other_domains()


@pytest.fixture(scope="module")
def moved(sources: list[LabelledTrials]) -> LearnedSimulator:
    """Taught by other domains; not to be refitted."""
    return simulator_from(sources)


def taught(simulator: LearnedSimulator, trials: LabelledTrials) -> LearnedSimulator:
    """A new one that knows the same domains, and these trials."""
    found = LearnedSimulator(simulator.kernel, simulator.sources)
    found.refit_features(trials.features, trials.step_seconds)
    return found


def unseen_accuracy(simulator: LearnedSimulator, trials: LabelledTrials) -> float:
    unseen = trials.take(UNSEEN)
    predicted, _ = simulator.predict_features(unseen.features)
    return pairwise_accuracy(predicted, unseen.step_seconds)


def timeline_accuracy(trials: LabelledTrials) -> float:
    unseen = trials.take(UNSEEN)
    return pairwise_accuracy(unseen.features.base_seconds, unseen.step_seconds)


def test_without_trials_it_is_the_timeline() -> None:
    domain = small_domain()
    population = some_strategies(domain, 6)
    simulator = LearnedSimulator()
    assert isinstance(simulator, Learner)
    expected = TimelineSimulator().predict(domain, population)
    np.testing.assert_array_equal(simulator.predict(domain, population), expected)
    assert (simulator.predict_with_std(domain, population)[1] > 0).all()


def test_other_domains_teach_what_the_timeline_does_not_know(
    moved: LearnedSimulator, trials: LabelledTrials
) -> None:
    assert unseen_accuracy(moved, trials) > timeline_accuracy(trials) + 0.02
    predicted, std = moved.predict_features(trials.features)
    base = np.abs(np.log(trials.features.base_seconds / trials.step_seconds))
    assert np.median(np.abs(np.log(predicted / trials.step_seconds))) < np.median(base)
    assert (std > 0).all()


@pytest.mark.parametrize("count", [1, 3, 6, 10, 20])
def test_few_trials_never_rank_worse_than_the_timeline(
    count: int, moved: LearnedSimulator, trials: LabelledTrials
) -> None:
    few = trials.take(KNOWN[:count])
    assert unseen_accuracy(taught(LearnedSimulator(), few), trials) >= timeline_accuracy(trials)
    assert unseen_accuracy(taught(moved, few), trials) >= unseen_accuracy(moved, trials) - 0.01


def test_a_first_trial_tells_the_level(moved: LearnedSimulator, trials: LabelledTrials) -> None:
    slow = LabelledTrials(trials.domain, trials.features, 1.1 * trials.step_seconds)
    before = np.median(np.log(moved.predict_features(slow.features)[0] / slow.step_seconds))
    after = taught(moved, slow.take(KNOWN[:1])).predict_features(slow.features)[0]
    assert abs(np.median(np.log(after / slow.step_seconds))) < abs(before)


def test_a_first_trial_tells_the_level_of_a_backend_that_no_source_used(
    moved: LearnedSimulator, trials: LabelledTrials
) -> None:
    """Before it the level is the timeline's; after it most of the miss is gone."""
    descriptor = trials.features.descriptor.copy()
    descriptor[NCCL] = 1.0
    features = replace(trials.features, descriptor=descriptor)
    nccl = LabelledTrials(trials.domain, features, 1.1 * trials.step_seconds)
    assert moved.posterior(descriptor).level() == 0.0
    misses = []
    for count in (0, 1, 4):
        simulator = taught(moved, nccl.take(KNOWN[:count])) if count else moved
        seconds, _ = simulator.predict_features(nccl.take(UNSEEN).features)
        misses.append(abs(float(np.median(np.log(seconds / nccl.step_seconds[UNSEEN])))))
    assert misses[1] < 0.75 * misses[0]
    assert misses[2] < 0.5 * misses[0]


def test_trials_make_seconds_right_and_nine_of_ten_lie_within_the_stated_spread(
    moved: LearnedSimulator, trials: LabelledTrials
) -> None:
    simulator, unseen = taught(moved, trials.take(KNOWN)), trials.take(UNSEEN)
    seconds, std = simulator.predict_features(unseen.features)
    errors = np.abs(np.log(seconds / unseen.step_seconds))
    base = np.abs(np.log(unseen.features.base_seconds / unseen.step_seconds))
    assert np.median(errors) < 0.5 * np.median(base)
    assert std.max() < np.median(base)
    spread = np.sqrt(std**2 + simulator.kernel.noise_variance(seconds / seconds.min()))
    assert 0.75 <= (errors < 1.645 * spread).mean() <= 1.0


def test_labels_that_are_noise_leave_the_timeline_almost_alone(trials: LabelledTrials) -> None:
    right = trials.features.base_seconds
    noisy = right * np.exp(0.02 * np.random.default_rng(0).standard_normal(len(right)))
    simulator = taught(LearnedSimulator(), LabelledTrials(trials.domain, trials.features, noisy))
    predicted, _ = simulator.predict_features(trials.features)
    assert pairwise_accuracy(predicted, right) >= 0.98


def test_learning_again_starts_anew_and_is_the_same_every_time(
    moved: LearnedSimulator, trials: LabelledTrials
) -> None:
    few, many = trials.take(KNOWN[:40]), trials.take(KNOWN)
    twice = taught(moved, few)
    twice.refit_features(many.features, many.step_seconds)
    for one, other in zip(
        taught(moved, many).predict_features(trials.features),
        twice.predict_features(trials.features),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_another_domain_is_judged_by_what_other_domains_taught(
    moved: LearnedSimulator, trials: LabelledTrials, sources: list[LabelledTrials]
) -> None:
    simulator = taught(moved, trials.take(KNOWN))
    other = sources[0].features
    np.testing.assert_allclose(
        simulator.predict_features(other)[0], moved.predict_features(other)[0]
    )


def test_a_population_is_predicted_in_chunks_as_whole(
    moved: LearnedSimulator, trials: LabelledTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = trials.domain
    simulator = LearnedSimulator(moved.kernel, moved.sources)
    population = some_strategies(domain, 30, seed=3)
    simulator.refit(domain, population, invented_seconds(domain, population))
    whole = simulator.predict(domain, population)
    np.testing.assert_allclose(simulator.predict_with_std(domain, population)[0], whole)
    monkeypatch.setattr(strategy_features, "CHUNK", 5)
    np.testing.assert_allclose(simulator.predict(domain, population), whole)
    np.testing.assert_allclose(
        simulator.predict(domain, concatenate([population, population.take([2])])),
        [*whole, whole[2]],
    )
    assert not len(simulator.predict(domain, population.take([])))


def test_what_learns_from_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no source"):
        simulator_from([])


def test_a_descriptor_knows_no_names_and_no_size_of_cluster() -> None:
    domain = small_domain()
    nodes = tuple(reversed(domain.cluster.nodes))
    renamed = replace(domain, cluster=replace(domain.cluster, name="other", nodes=nodes))
    np.testing.assert_allclose(describe_domain(renamed), describe_domain(domain))
    for size in (2, 3, 17):
        other = domain_of(chain_graph(), grid_cluster(size, 2))
        assert describe_domain(other).shape == (len(DESCRIPTOR),)
        assert np.isfinite(describe_domain(other)).all()
