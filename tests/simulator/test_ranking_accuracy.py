"""Accuracy of a ranking, worked by hand."""

import numpy as np
import pytest

from autosync.simulator.ranking_accuracy import pairs_ranked, pairwise_accuracy


def test_accuracy_by_hand() -> None:
    measured = np.array([1.0, 2.0, 3.0, 4.0])
    predicted = np.array([1.0, 3.0, 2.0, 4.0])
    assert pairwise_accuracy(predicted, measured) == pytest.approx(5 / 6)
    assert pairwise_accuracy(-predicted, measured) == pytest.approx(1 / 6)
    assert pairwise_accuracy(np.ones(4), measured) == 0.5


def test_equal_measurements_are_no_pair() -> None:
    assert pairs_ranked(np.array([1.0, 2.0]), np.array([3.0, 3.0])) == (0.0, 0)
    assert np.isnan(pairwise_accuracy(np.array([1.0, 2.0]), np.array([3.0, 3.0])))
