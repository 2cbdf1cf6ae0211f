"""Training on several domains: what is held out, and judging by models that were not seen."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.population import concatenate, encode
from autosync.search.designs.torch_engines import fsdp2, zero2
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
from tests.domains import domain_of, layered_graph
from tests.simulator.learned.worlds import some_strategies
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


def test_a_domain_without_a_pair_judges_nothing(sources: list[SplitTrials]) -> None:
    first, other = sources
    one = np.arange(1)
    lone = SplitTrials(first.trials.take(one), np.zeros(1, np.bool_), np.zeros(1, np.bool_))
    said: list[str] = []
    found = train_simulator([lone, other], said.append)
    assert found.accuracy is not None
    assert 0.0 <= found.accuracy <= 1.0
    assert sum("of pairs" in words for words in said) == 1


def test_what_a_process_does_not_judge_teaches_nothing() -> None:
    """A tuning tries shardings beside others, and its trials may become a dataset."""
    domain = domain_of(layered_graph())
    sharded = encode([fsdp2(domain), zero2(domain)], domain)
    both = concatenate([some_strategies(domain, 8), sharded])
    seconds = np.linspace(1.0, 2.0, 10)
    (split,) = split_dataset([MeasuredDomain(domain, both, seconds)])
    np.testing.assert_array_equal(split.trials.step_seconds, seconds[:8])
    assert len(split.held_out) == len(split.picked) == 8
    assert split_dataset([MeasuredDomain(domain, sharded, seconds[:2])]) == []
