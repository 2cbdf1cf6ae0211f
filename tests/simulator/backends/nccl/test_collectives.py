"""NCCL's times obey what links and NICs can carry, and NCCL's choices obey its rules."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.cluster import Transport
from autosync.errors import InvalidInput
from autosync.simulator.backends.nccl import Forced, collective_times, confidence, cost_segments
from autosync.simulator.backends.nccl.algorithms import OPERATIONS
from autosync.simulator.backends.nccl.constants import PRIORS, constants
from autosync.simulator.fabric import Spine
from autosync.simulator.topology import Topology, topology_of
from tests.simulator.test_topology import cluster

SIZES: NDArray[np.float64] = 2.0 ** np.arange(3.0, 35.0)


def on(
    device: str = "h100", gpus: int = 8, nodes: int = 2, transport: Transport = "infiniband"
) -> Topology:
    return topology_of(cluster(device, gpus, nodes, transport))


def bus_gbytes(topology: Topology, forced: Forced, size_bytes: float = 2.0**34) -> float:
    """Of an all-reduce, as nccl-tests count it."""
    seconds = collective_times(topology, "all_reduce", np.array([size_bytes]), forced).seconds[0]
    n = topology.ranks
    return float(size_bytes * 2 * (n - 1) / n / seconds * 1e-9)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("nodes", [1, 2, 16])
def test_times_grow_with_size_and_lie_in_their_intervals(operation: str, nodes: int) -> None:
    times = collective_times(on(nodes=nodes), operation, SIZES)
    assert (np.diff(times.seconds) >= 0).all()
    assert (times.low_seconds < times.seconds).all()
    assert (times.seconds < times.high_seconds).all()
    assert len(times.algorithm) == len(times.protocol) == len(SIZES)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_segments_are_the_same_times(operation: str) -> None:
    topology = on(nodes=4)
    segments = cost_segments(topology, operation)
    least = np.array([each.least_bytes for each in segments])
    assert least[0] == 0.0
    assert (np.diff(least) > 0).all()
    place = np.searchsorted(least, SIZES, side="right") - 1
    seconds = np.array(
        [
            segments[at].startup_seconds + size * segments[at].seconds_per_byte
            for at, size in zip(place, SIZES, strict=True)
        ]
    )
    assert seconds == pytest.approx(collective_times(topology, operation, SIZES).seconds, rel=0.045)
    assert min(each.startup_seconds for each in segments) > 0


def test_one_rank_costs_nothing() -> None:
    alone = replace(on(), nodes=1, gpus_per_node=1)
    assert cost_segments(alone, "all_reduce") == ()
    assert collective_times(alone, "all_reduce", SIZES).seconds.tolist() == [0.0] * len(SIZES)


def test_a_ring_exceeds_neither_links_nor_nics() -> None:
    for nodes in (1, 2, 4, 64):
        topology = on(nodes=nodes)
        most = min(450.0, topology.node_gbytes_per_second or 450.0)
        assert bus_gbytes(topology, Forced("Ring")) < most


def test_trees_of_two_nodes_exceed_the_network_and_of_four_do_not() -> None:
    two, four = on(nodes=2), on(nodes=4)
    assert bus_gbytes(two, Forced()) > two.node_gbytes_per_second
    assert bus_gbytes(four, Forced()) < four.node_gbytes_per_second
    early = replace(two, nccl_version=(2, 9))
    assert bus_gbytes(early, Forced()) < two.node_gbytes_per_second


@pytest.mark.parametrize(
    ("device", "gpus", "algorithm"),
    [("h200", 4, "Ring"), ("h200", 5, "NVLS"), ("b200", 5, "Ring"), ("b200", 6, "NVLS"),
     ("a100", 8, "Ring"), ("h100", 8, "NVLS")],
)  # fmt: skip
def test_nvls_runs_where_nccl_picks_it(device: str, gpus: int, algorithm: str) -> None:
    topology = on(device, gpus, 1, "")
    large = np.array([2.0**33])
    assert collective_times(topology, "all_reduce", large).algorithm == (algorithm,)
    assert collective_times(topology, "all_gather", large).algorithm == ("Ring",)


def test_nvls_is_of_late_versions() -> None:
    early = replace(on(nodes=1), nccl_version=(2, 14))
    assert collective_times(early, "all_reduce", np.array([2.0**33])).algorithm == ("Ring",)


def test_small_messages_take_ll_and_large_ones_simple() -> None:
    protocols = collective_times(on(nodes=1), "all_reduce", np.array([1024.0, 2.0**33])).protocol
    assert protocols == ("LL", "Simple")


@pytest.mark.parametrize(
    ("device", "transport", "protocols"),
    [("h100", "infiniband", {"LL", "LL128", "Simple"}), ("a100", "tcp", {"LL", "Simple"}),
     ("h100", "gpudirect-tcpx", {"Simple"}), ("t4", "infiniband", {"LL", "Simple"})],
)  # fmt: skip
def test_protocols_are_those_that_nccl_enables(
    device: str, transport: Transport, protocols: set[str]
) -> None:
    ring = collective_times(on(device, 8, 2, transport), "all_gather", SIZES).protocol
    assert set(ring) <= protocols
    refused = {"LL", "LL128", "Simple"} - protocols
    for protocol in refused:
        with pytest.raises(InvalidInput, match=f"protocol {protocol}"):
            collective_times(
                on(device, 8, 2, transport), "all_gather", SIZES, Forced(protocol=protocol)
            )


def test_pat_serves_one_gpu_a_node() -> None:
    topology = replace(on(gpus=1, nodes=32), nccl_version=(2, 24))
    assert "PAT" in collective_times(topology, "all_gather", SIZES).algorithm
    assert "PAT" not in collective_times(on(nodes=32), "all_gather", SIZES).algorithm


def test_sharp_runs_where_it_is_forced() -> None:
    topology = on(nodes=8)
    assert "CollNet" not in collective_times(topology, "all_reduce", SIZES).algorithm
    forced = collective_times(topology, "all_reduce", SIZES, Forced("CollNet"))
    assert set(forced.algorithm) == {"CollNet"}


def test_what_is_forced_and_cannot_run_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot run by algorithm NVLS"):
        collective_times(on("a100"), "all_reduce", SIZES, Forced("NVLS"))
    with pytest.raises(InvalidInput, match="no algorithm 'ring'") as refusal:
        collective_times(on(), "all_reduce", SIZES, Forced("ring"))
    assert "Ring, Tree" in str(refusal.value.remedy)
    with pytest.raises(InvalidInput, match="no operation"):
        collective_times(on(), "gather", SIZES)


def test_fewer_channels_are_slower() -> None:
    topology = on(nodes=1)
    ring = bus_gbytes(topology, Forced("Ring"))
    assert bus_gbytes(topology, Forced("Ring", channels=12)) == pytest.approx(ring / 2, rel=0.1)


def test_fewer_channels_are_as_fast_where_they_still_fill_the_nics() -> None:
    one = replace(on("a100"), nics=1)
    ring = bus_gbytes(one, Forced("Ring"))
    assert bus_gbytes(one, Forced("Ring", channels=12)) == pytest.approx(ring)
    assert bus_gbytes(one, Forced("Ring", channels=2)) < 0.6 * ring
    large = np.array([2.0**34])
    for channels, binding in ((12, "NICs"), (2, "channels")):
        forced = Forced("Ring", channels=channels)
        assert collective_times(one, "all_reduce", large, forced).binding == (binding,)


def test_channels_use_as_many_nics_at_most() -> None:
    eight = replace(on("a100"), nic_gbytes_per_second=1.5)
    ring = bus_gbytes(eight, Forced("Ring"))
    assert bus_gbytes(eight, Forced("Ring", channels=8)) == pytest.approx(ring)
    assert bus_gbytes(eight, Forced("Ring", channels=4)) == pytest.approx(ring / 2, rel=0.05)


def test_an_oversubscribed_spine_narrows_nics() -> None:
    four = on(nodes=4)
    spine = Spine(2.0, 1, False, four.nics, ()).of_hosts(4)
    halved = bus_gbytes(replace(four, spine=spine), Forced("Ring"))
    assert halved == pytest.approx(bus_gbytes(four, Forced("Ring")) / 2, rel=0.15)


def test_tcp_is_bound_by_its_connections() -> None:
    topology = replace(on("t4", 1, 2, "tcp"), nics=1, nic_gbytes_per_second=3.125)
    slow = replace(topology, connection_gbytes_per_second=0.5)
    assert bus_gbytes(slow, Forced("Ring")) == pytest.approx(0.5, rel=0.05)
    assert bus_gbytes(topology, Forced("Ring")) > 1.0


def test_hosts_without_peer_to_peer_share_their_memory() -> None:
    four, eight = on("rtx-2080-ti", 4, 1, ""), on("rtx-2080-ti", 8, 1, "")
    assert four.gpu_link == "pcie3-without-p2p"
    assert bus_gbytes(eight, Forced()) < 0.6 * bus_gbytes(four, Forced())


def test_every_constant_is_within_its_physical_bound_and_names_its_source() -> None:
    assert constants().keys() == PRIORS.keys()
    for (name, quantity), each in constants().items():
        assert each.low <= each.value <= each.high, (name, quantity)
        assert each.source
        assert 0 < each.width < 2


def test_confidence_tells_measured_classes_from_others() -> None:
    measured = confidence(on("h100"))
    assert measured.keys() == {"hopper", "nvlink4", "infiniband"}
    assert all(each.measured for each in measured["infiniband"].values())
    assert not any(each.measured for each in confidence(on("t4", 4, 1, ""))["pcie3"].values())
    assert confidence(on("h100", 1)).keys() == {"hopper", "infiniband"}


def test_classes_without_a_sweep_have_wider_intervals() -> None:
    size_bytes = np.array([2.0**30])

    def width(topology: Topology) -> float:
        times = collective_times(topology, "all_reduce", size_bytes)
        return float(times.high_seconds[0] / times.seconds[0])

    assert width(on("t4", 4, 1, "")) > width(on("a100", 8, 1, ""))
