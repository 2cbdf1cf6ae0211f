"""When PowerSGD's factors are fewer bytes than their matrix."""

import pytest

from autosync.codes import POWERSGD
from autosync.plan.bucket_cutting import (
    FACTOR_BYTES,
    encoded_bytes,
    low_rank_gains,
    second_factor_bytes,
)


@pytest.mark.parametrize(
    ("rows", "columns", "rank", "gains"),
    [(10, 12, 5, True), (10, 12, 6, False), (4, 4, 2, False), (4, 4, 1, True), (1, 12, 1, False)],
)
def test_factors_travel_where_they_are_smaller(
    rows: int, columns: int, rank: int, gains: bool
) -> None:
    """As large as the matrix is not smaller."""
    elements, encoding = rows * columns, POWERSGD + rank
    assert low_rank_gains(elements, rows, rank) == gains
    travels = rank * (rows + columns) if gains else elements
    assert encoded_bytes(elements, 4, rows, encoding) == travels * FACTOR_BYTES
    second = rank * columns * FACTOR_BYTES if gains else 0
    assert second_factor_bytes(elements, rows, encoding) == second
