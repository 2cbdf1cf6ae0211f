"""Training on several domains: what is held out, and judging by models that were not seen."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.simulator.learned.checkpoint import weights_of
from autosync.simulator.learned.training import (
    UNSEEN,
    SplitTrials,
    held_out_accuracy,
    joined_trials,
    split_dataset,
    split_trials,
    train_simulator,
)
from autosync.simulator.runtime_dataset import MeasuredDomain, dataset_hash
from tests.simulator.measurements import measured


@pytest.fixture(scope="module")
def dataset() -> list[MeasuredDomain]:
    """The second is of a graph of another name."""
    first, second = measured(1.0, seed=1, count=40), measured(0.5, seed=2, count=40)
    graph = replace(second.domain.graph, name="another model")
    return [first, replace(second, domain=replace(second.domain, graph=graph))]


@pytest.fixture(scope="module")
def sources(dataset: list[MeasuredDomain]) -> list[SplitTrials]:
    return split_dataset(dataset)


def test_the_same_strategies_are_held_out_whatever_else_was_measured(
    dataset: list[MeasuredDomain], sources: list[SplitTrials]
) -> None:
    each = dataset[0]
    some = np.arange(0, 40, 3)
    alone = split_trials(each.domain, each.population.take(some), each.label_seconds[some])
    np.testing.assert_array_equal(alone.held_out, sources[0].held_out[some])
    assert 2 <= sources[0].held_out.sum() <= 20
    assert len(sources[0].learned.step_seconds) + sources[0].held_out.sum() == 40


def test_strategies_that_look_alike_are_on_one_side(dataset: list[MeasuredDomain]) -> None:
    each = dataset[0]
    twice = np.concatenate((np.arange(20), np.arange(20)))
    split = split_trials(each.domain, each.population.take(twice), each.label_seconds[twice])
    np.testing.assert_array_equal(split.held_out[:20], split.held_out[20:])


def test_a_training_is_the_same_every_time_and_judged_by_what_it_did_not_see(
    sources: list[SplitTrials],
) -> None:
    said: list[str] = []
    first, again = (train_simulator(sources, said.append) for _ in range(2))
    assert weights_of(first.simulator) == weights_of(again.simulator)
    assert (first.accuracy, first.unseen) == (again.accuracy, UNSEEN)
    assert first.accuracy is not None
    assert first.accuracy > 0.5
    assert sum("another model" in words for words in said) == 2
    judged = held_out_accuracy(first.simulator, sources)
    assert judged is not None
    assert judged > 0.5
    assert held_out_accuracy(first.simulator, sources, picks=True) is None


def test_domains_that_differ_in_probed_costs_alone_are_one_source(
    sources: list[SplitTrials],
) -> None:
    joined = joined_trials([sources[0], sources[0]])
    assert joined.trials.domain == sources[0].trials.domain
    for part in (slice(40), slice(40, None)):
        rows = np.arange(80)[part]
        taken = joined.trials.take(rows).features
        np.testing.assert_array_equal(taken.summary, sources[0].trials.features.summary)


def test_another_measurement_is_another_dataset(dataset: list[MeasuredDomain]) -> None:
    seconds = dataset[0].step_seconds.copy()
    seconds[3] *= 1.001
    changed = replace(dataset[0], step_seconds=seconds)
    assert dataset_hash(dataset) == dataset_hash(list(dataset))
    assert dataset_hash([changed, dataset[1]]) != dataset_hash(dataset)
