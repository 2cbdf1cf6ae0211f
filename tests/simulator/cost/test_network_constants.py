"""Fitted constants on clusters: startups of rings, connections, engines; borrowed constants."""

from dataclasses import replace

import pytest

from autosync.cluster import Cluster, Device, Node
from autosync.cluster_file import load_cluster
from autosync.simulator.cost.fitted_constants import load_constants
from autosync.simulator.cost.network_constants import (
    CONNECTION_GBPS,
    ring_costs,
    uses_tcp,
    with_borrowed_constants,
    with_engine,
    with_network,
)
from tests.domains import grid_cluster

FITTED = load_constants("rtx-2080-ti")


def nccl_cluster(nodes: int, devices: int, gbps: float, latency_us: float = 50.0) -> Cluster:
    hosts = [
        Node(f"n{i}", (Device("v100", devices),), gbps, 100.0, latency_us) for i in range(nodes)
    ]
    return Cluster("other", tuple(hosts), "nccl")


def test_a_ring_pays_a_launch_and_every_hop() -> None:
    hop_seconds = 50e-6
    for nodes, devices, between in ((1, 4, 0), (4, 1, 4), (2, 4, 2), (16, 4, 16)):
        workers = nodes * devices
        all_reduce, *halves = ring_costs(nccl_cluster(nodes, devices, 9.0), FITTED, hop_seconds)
        mean = (between * hop_seconds + (workers - between) * FITTED.hop_seconds) / workers
        startup = all_reduce.startup_seconds + workers * all_reduce.startup_seconds_per_worker
        assert startup == pytest.approx(FITTED.message_seconds + 2 * (workers - 1) * mean)
        for half in halves:
            assert half.startup_seconds == all_reduce.startup_seconds / 2


def test_an_all_reduce_of_64_devices_starts_as_slowly_as_published() -> None:
    # DeAR, section II-D: 1 MB takes around 4.5 ms and 500 KB 3.9 ms on 16 nodes of 4 under 10 GbE,
    # so that 3.3 ms are no bytes; no row of the fit has more than 16 devices
    cluster = load_cluster("rtx-2080-ti-16x4-10gbe")
    cost = cluster.cost("all_reduce")
    startup = cost.startup_seconds + cost.startup_seconds_per_worker * cluster.world_size
    assert 1.5e-3 < startup < 4.5e-3


def test_an_engine_replaces_the_one_before() -> None:
    cluster = with_engine(with_engine(grid_cluster(), 1e-3), 2e-3)
    assert [cost.startup_seconds for cost in cluster.costs] == [2e-3]
    assert cluster.cost("engine").startup_seconds == 2e-3


def test_a_server_host_is_no_faster_than_its_port() -> None:
    cluster = load_cluster("rtx-2080-ti-2x4-10gbe-servers")
    swift = replace(FITTED.networks["10gbe"], server_bandwidth_gbps=9.5, payload_share=0.9)
    constants = replace(FITTED, networks={"10gbe": swift})
    rates = {node.bandwidth_gbps for node in with_network(cluster, constants, "10gbe").nodes}
    assert rates == {9.0}


def test_other_clusters_keep_what_their_file_states() -> None:
    tcp, rdma = nccl_cluster(2, 4, 23.9), nccl_cluster(2, 4, 97.0, latency_us=2.0)
    assert uses_tcp(tcp)
    assert not uses_tcp(rdma)
    lent = with_borrowed_constants(tcp, FITTED)
    assert lent.nodes == tcp.nodes
    assert lent.connection_gbps == CONNECTION_GBPS
    assert with_borrowed_constants(replace(tcp, connection_gbps=20.0), FITTED).connection_gbps == 20
    assert with_borrowed_constants(rdma, FITTED).connection_gbps == 0
    stated = with_engine(replace(tcp, costs=lent.costs[:1]), 1e-3)
    again = with_borrowed_constants(stated, FITTED)
    assert again.costs[:2] == stated.costs
    assert {cost.kind for cost in again.costs[2:]} == {"all_to_all", "all_gather"}
    swift = with_borrowed_constants(rdma, FITTED).cost("all_reduce")
    assert swift.startup_seconds_per_worker < lent.cost("all_reduce").startup_seconds_per_worker
