"""A short soak: random faults in a row, none costs more than its own trial."""

from pathlib import Path

import pytest

from benchmarks.faults import soak

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.testbed,
    pytest.mark.usefixtures("testbed_possible"),
]

TIMEOUT_SECONDS = 20.0
"""What a sound pass of 0.3 s never needs, beside other load too, and two of the faults take."""


def test_no_fault_costs_more_than_its_own_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "TIMEOUT_SECONDS", TIMEOUT_SECONDS)
    monkeypatch.setattr(soak, "END_SECONDS", 200.0)
    kinds = len(soak.EXPECTED)
    rows = soak.soak(faults=kinds, seed=1, ranks=2, folder=tmp_path)
    assert [row.count for row in rows] == [1] * kinds
    assert all(row.sound for row in rows), rows
