"""What scales a small machine chooses for a cluster."""

import pytest

from autosync.domain import Domain
from autosync.trials.scales import (
    CORES_A_RANK,
    automatic_scales,
    cores_a_rank,
    time_scale_of_cores,
)
from tests.domains import domain_of, grid_cluster


@pytest.mark.parametrize(
    ("gbps", "operation_seconds", "expected"),
    [(0.1, 1e-2, (1.0, 1.0)), (9.56, 1e-2, (1 / 32, 2.0)), (40.0, 1e-2, (1 / 32, 8.0))],
)
def test_automatic_scales_keep_links_within_what_cores_carry(
    gbps: float, operation_seconds: float, expected: tuple[float, float]
) -> None:
    domain: Domain = domain_of(None, grid_cluster(4, 1, gbps), operation_seconds)
    assert automatic_scales(domain) == expected


def test_automatic_scales_stretch_short_compute() -> None:
    byte_scale, time_scale = automatic_scales(domain_of(None, grid_cluster(4, 1, 0.25), 1e-4))
    assert byte_scale == 1.0
    assert 6 * 3e-4 * time_scale >= 0.02


@pytest.mark.parametrize(
    ("ranks", "cores", "expected"),
    [(4, 2, 4.0), (8, 2, 8.0), (4, 3, 8 / 3), (4, 8, 1.0), (2, 64, 1)],
)
def test_ranks_get_their_cores_by_slowing_down(ranks: int, cores: int, expected: float) -> None:
    """As many as the machine has are not taken away: nothing runs faster than the cluster."""
    found = time_scale_of_cores(ranks, cores)
    assert found == expected
    assert cores_a_rank(ranks, cores, found) >= CORES_A_RANK
