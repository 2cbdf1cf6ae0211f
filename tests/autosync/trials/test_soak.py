"""A short soak: random faults in a row, none costs more than its own trial."""

from pathlib import Path

import pytest

from benchmarks.fault_soak import EXPECTED, soak

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("testbed_possible")]


def test_no_fault_costs_more_than_its_own_trial(tmp_path: Path) -> None:
    rows = soak(faults=len(EXPECTED), seed=1, ranks=2, folder=tmp_path)
    assert [row.count for row in rows] == [1] * len(EXPECTED)
    assert all(row.sound for row in rows), rows
