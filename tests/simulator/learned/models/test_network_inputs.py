"""How columns are standardised."""

import numpy as np
import pytest

from autosync.simulator.learned.models import network_inputs
from autosync.simulator.learned.models.network_inputs import scaling_of


def test_columns_are_standardised_alike_in_blocks_and_each_domain_counts_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    tables = [rng.standard_normal((rows, 3)) * (1.0, 0.0, 9.0) for rows in (10, 25)]
    monkeypatch.setattr(network_inputs, "ROWS", 7)
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
