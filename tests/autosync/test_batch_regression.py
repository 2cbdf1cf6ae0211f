"""Compute seconds at other batch sizes."""

from dataclasses import replace

import pytest

from autosync.batch_regression import profile_at_batch
from autosync.domain import Profile
from autosync.errors import InvalidInput
from tests.domains import chain_graph

GRAPH = chain_graph()


def profile_of(
    batch: int, fixed: float = 1e-3, each: float = 1e-4, device: str = "v100"
) -> Profile:
    """Every operation takes `fixed` and `each` an example, backward twice that."""
    forward = (fixed + each * batch,) * len(GRAPH.operations)
    return Profile(device, batch, forward, tuple(2 * s for s in forward), 0.01, "measured")


def test_a_line_is_found_again() -> None:
    wanted = replace(GRAPH, batch_size=64)
    found = profile_at_batch(wanted, [profile_of(8), profile_of(16), profile_of(32)])
    assert found.batch_size == 64
    assert found.source == "estimated"
    assert found.forward_seconds == pytest.approx(profile_of(64).forward_seconds)
    assert found.backward_seconds == pytest.approx(profile_of(64).backward_seconds)
    assert found.update_seconds == 0.01
    assert "batch sizes 8, 16, 32" in found.note
    assert "within 0%" in found.note


def test_no_time_falls_with_the_batch_or_begins_below_zero() -> None:
    wanted = replace(GRAPH, batch_size=64)
    falling = profile_at_batch(wanted, [profile_of(8, 2e-3, 0.0), profile_of(16, 1e-3, 0.0)])
    assert falling.forward_seconds[0] == pytest.approx(1.5e-3)
    steep = [profile_of(8, -4e-4), profile_of(16, -4e-4)]  # 0.4 and 1.2 ms
    one = profile_at_batch(replace(GRAPH, batch_size=1), steep)
    assert one.forward_seconds[0] == pytest.approx((8 * 4e-4 + 16 * 12e-4) / (64 + 256))


def test_profiles_that_do_not_belong_together_are_refused() -> None:
    for profiles, words in (
        ([profile_of(8), profile_of(8)], "two different batch sizes"),
        ([profile_of(8), profile_of(16, device="t4")], "one device"),
        ([profile_of(8), replace(profile_of(16), forward_seconds=(1.0,))], "another number"),
    ):
        with pytest.raises(InvalidInput, match=words) as refused:
            profile_at_batch(GRAPH, profiles)
        assert refused.value.remedy
