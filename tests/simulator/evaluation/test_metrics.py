"""Measures of ranking, worked by hand."""

import numpy as np
import pytest

from autosync.simulator.evaluation.metrics import judge, pairs_ranked, pairwise_accuracy, top_regret
from autosync.simulator.evaluation.splits import split_strategies


def test_accuracy_by_hand() -> None:
    measured = np.array([1.0, 2.0, 3.0, 4.0])
    predicted = np.array([1.0, 3.0, 2.0, 4.0])
    assert pairwise_accuracy(predicted, measured) == pytest.approx(5 / 6)
    assert pairwise_accuracy(-predicted, measured) == pytest.approx(1 / 6)
    assert pairwise_accuracy(np.ones(4), measured) == 0.5


def test_only_pairs_beyond_the_noise_count() -> None:
    measured = np.array([1.0, 1.01, 2.0])
    predicted = np.array([1.1, 1.0, 3.0])
    assert pairs_ranked(predicted, measured, 0.02) == (2.0, 2)
    assert judge(predicted, measured, noise=0.01).beyond_noise == 1.0
    assert judge(predicted, measured, noise=0.001).beyond_noise == pytest.approx(2 / 3)
    assert np.isnan(judge(predicted, measured, noise=None).beyond_noise)


def test_equal_measurements_are_no_pair() -> None:
    assert pairs_ranked(np.array([1.0, 2.0]), np.array([3.0, 3.0])) == (0.0, 0)
    assert np.isnan(pairwise_accuracy(np.array([1.0, 2.0]), np.array([3.0, 3.0])))


def test_regret_is_of_the_strategy_that_would_be_taken() -> None:
    assert top_regret(np.array([2.0, 1.0, 3.0]), np.array([1.0, 1.2, 0.8])) == pytest.approx(0.5)


def test_the_fastest_quarter_is_of_the_measured() -> None:
    measured = np.arange(1.0, 13.0)
    predicted = measured.copy()
    predicted[[0, 2]] = predicted[[2, 0]]
    assert judge(predicted, measured, 0.001).fast_quarter == 0.0
    predicted = measured.copy()
    predicted[[5, 9]] = predicted[[9, 5]]
    assert judge(predicted, measured, 0.001).fast_quarter == 1.0


def test_splits_are_whole_disjoint_and_of_the_papers_shares() -> None:
    for seed in range(3):
        split = split_strategies(100, seed)
        assert (len(split.train), len(split.validation), len(split.test)) == (70, 15, 15)
        everything = np.concatenate([split.train, split.validation, split.test])
        assert sorted(everything) == list(range(100))
        assert set(split.known).isdisjoint(split.test)
    assert not np.array_equal(split_strategies(100, 0).test, split_strategies(100, 1).test)
