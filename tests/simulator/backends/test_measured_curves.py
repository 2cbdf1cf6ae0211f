"""What was measured on a cluster counts before the constants of its class."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster.cluster_file import load_cluster
from autosync.cluster.collective_curve import CollectiveCurve
from autosync.simulator.backends.nccl import (
    CollectiveTimes,
    Forced,
    collective_times,
    cost_segments,
)
from autosync.simulator.topology import Topology, topology_of

SIZES = (1024.0, 2.0**20, 2.0**30)
CURVE = CollectiveCurve("all_reduce", 32, 4, SIZES, (9e-5, 3e-4, 7e-3))
PLAIN = load_cluster("aws-p5-48xlarge-x4")
MEASURED = replace(PLAIN, curves=(CURVE,))


def times(topology: Topology, *sizes: float, forced: Forced | None = None) -> CollectiveTimes:
    return collective_times(topology, "all_reduce", np.array(sizes), forced or Forced())


def test_predictions_pass_through_what_was_measured() -> None:
    found = times(topology_of(MEASURED), *SIZES)
    assert found.seconds == pytest.approx(CURVE.seconds)
    assert (found.high_seconds / found.low_seconds < 1.25).all()
    for size, seconds in zip(SIZES, CURVE.seconds, strict=True):
        segments = cost_segments(topology_of(MEASURED), "all_reduce")
        piece = [each for each in segments if each.least_bytes <= size][-1]
        assert piece.startup_seconds + size * piece.seconds_per_byte == pytest.approx(
            seconds, rel=0.15
        )


def test_between_and_beyond_measured_sizes_the_shape_is_that_of_the_constants() -> None:
    plain, measured = topology_of(PLAIN), topology_of(MEASURED)
    last = CURVE.seconds[-1] / times(plain, SIZES[-1]).seconds[0]
    beyond = times(measured, 2.0**34).seconds[0] / times(plain, 2.0**34).seconds[0]
    assert beyond == pytest.approx(last)
    middle = times(measured, 2.0**25).seconds[0] / times(plain, 2.0**25).seconds[0]
    assert last < middle < CURVE.seconds[1] / times(plain, SIZES[1]).seconds[0]


def test_other_node_counts_are_moved_towards_the_nearest_measured_one() -> None:
    plain, measured = topology_of(PLAIN).of_nodes(16), topology_of(MEASURED).of_nodes(16)
    factor = CURVE.seconds[-1] / times(topology_of(PLAIN), SIZES[-1]).seconds[0]
    before, found = times(plain, SIZES[-1]), times(measured, SIZES[-1])
    moved = found.seconds[0] / before.seconds[0]
    assert min(1.0, factor) < moved < max(1.0, factor)
    exact = times(topology_of(MEASURED), SIZES[-1])
    at, near, without = (
        each.high_seconds[0] / each.low_seconds[0] for each in (exact, found, before)
    )
    assert at < near <= without * (1 + 1e-9)


@pytest.mark.parametrize(
    "changed",
    [
        {"operation": "all_gather"},
        {"algorithm": "Ring"},
        {"ranks": 4},  # one GPU a node
        {"ranks": 8, "nodes": 1},
    ],
)
def test_what_was_measured_of_something_else_changes_nothing(changed: dict[str, object]) -> None:
    other = replace(PLAIN, curves=(replace(CURVE, **changed),))  # type: ignore[arg-type]
    assert times(topology_of(other), *SIZES).seconds == pytest.approx(
        times(topology_of(PLAIN), *SIZES).seconds
    )


def test_a_curve_of_a_forced_algorithm_counts_where_it_is_forced() -> None:
    ring = replace(PLAIN, curves=(replace(CURVE, algorithm="Ring", protocol="Simple"),))
    found = times(topology_of(ring), *SIZES, forced=Forced("Ring", "Simple"))
    assert found.seconds == pytest.approx(CURVE.seconds)


@pytest.mark.parametrize("nodes", [4, 16])
@pytest.mark.parametrize(
    "forced", [Forced("Ring"), Forced("Tree", "Simple"), Forced(channels=4), Forced("Ring", "LL")]
)
def test_what_is_forced_is_not_faster_than_a_measured_choice(nodes: int, forced: Forced) -> None:
    """Neither where links are slower than the constants, nor where they are faster."""
    for slower in (0.3, 3.0):
        seconds = (slower * times(topology_of(PLAIN), *SIZES).seconds).tolist()
        cluster = replace(PLAIN, curves=(replace(CURVE, seconds=tuple(seconds)),))
        plain, topology = topology_of(PLAIN).of_nodes(nodes), topology_of(cluster).of_nodes(nodes)
        own, found = times(topology, *SIZES), times(topology, *SIZES, forced=forced)
        assert (found.seconds >= own.seconds * (1 - 1e-9)).all()
        of_constants = times(plain, *SIZES, forced=forced).seconds / times(plain, *SIZES).seconds
        assert found.seconds / own.seconds == pytest.approx(of_constants)


def test_fewer_channels_of_a_measured_algorithm_are_slower_than_it() -> None:
    ring = replace(PLAIN, curves=(replace(CURVE, algorithm="Ring", protocol="Simple"),))
    found = times(topology_of(ring), SIZES[-1], forced=Forced("Ring", "Simple", 4))
    assert found.seconds[0] > CURVE.seconds[-1]
