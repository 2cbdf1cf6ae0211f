"""What training is made of: the optimizer, its rate, and how columns are standardised."""

import numpy as np
import pytest
import torch

from simulator.learned import data
from simulator.learned.adam import Adam
from simulator.learned.data import scaling_of
from simulator.learned.training import Training


def test_adam_moves_weights_as_torchs_own_does() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
    theirs.load_state_dict(ours.state_dict())
    own = Adam(ours.parameters(), rate=0.01, weight_decay=0.1)
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01, weight_decay=0.1)
    for rate in (0.01, 0.01, 0.003, 0.003):
        own.rate = reference.param_groups[0]["lr"] = rate
        inputs = torch.randn(5, 6)
        for layer, optimizer in ((ours, own), (theirs, reference)):
            layer.zero_grad()
            torch.autograd.backward(layer(inputs).square().mean())
            optimizer.step()
    for weight, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-8)


def test_the_rate_falls_after_the_epochs_it_is_said_to() -> None:
    training = Training(learning_rate=0.1, decay=0.5, decay_at=(2, 3))
    rates = [training.rate(epoch) for epoch in range(1, 6)]
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.025, 0.025])


def test_columns_are_standardised_alike_in_blocks_and_each_domain_counts_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    tables = [rng.standard_normal((rows, 3)) * (1.0, 0.0, 9.0) for rows in (10, 25)]
    monkeypatch.setattr(data, "ROWS", 7)
    scaling = scaling_of(tables)
    center = (tables[0].mean(axis=0) + tables[1].mean(axis=0)) / 2
    squares = [((table - center) ** 2).mean(axis=0) for table in tables]
    scale = np.sqrt((squares[0] + squares[1]) / 2)
    np.testing.assert_allclose(scaling.center, center)
    np.testing.assert_allclose(scaling.scale, (scale[0], np.inf, scale[2]))
    expected = np.clip((tables[1] - center)[:, [0, 2]] / scale[[0, 2]], -5.0, 5.0)
    standard = scaling(tables[1])
    np.testing.assert_array_equal(standard[:, [0, 2]], expected.astype(np.float32))
    assert not standard[:, 1].any()
