"""The ranking loss, worked by hand."""

import numpy as np
import pytest
import torch

from autosync.simulator.learned.networks.network_training import ranking_loss, slower_pairs


def test_pairs_are_ordered_by_time_then_by_partitions() -> None:
    labels = torch.tensor([1.0, 1.005, 1.5])
    partitions = torch.tensor([40.0, 10.0, 10.0])
    slower = slower_pairs(labels, partitions, sigma=0.01)
    assert slower.tolist() == [[False, True, False], [False, False, False], [True, True, False]]
    without = slower_pairs(labels, partitions, sigma=0.0)
    assert without.tolist() == [[False, False, False], [True, False, False], [True, True, False]]


def test_the_loss_by_hand() -> None:
    """One pair: strategy 0 is slower, scores differ by one temperature in its favour."""
    loss = ranking_loss(
        torch.tensor([0.05, 0.0]), torch.tensor([2.0, 1.0]), torch.ones(2), temperature=0.05
    )
    assert loss.item() == pytest.approx(np.log(1 + np.exp(-1.0)), rel=1e-5)


def test_a_single_strategy_has_no_loss() -> None:
    assert ranking_loss(torch.zeros(1), torch.ones(1), torch.ones(1)).item() == 0.0
