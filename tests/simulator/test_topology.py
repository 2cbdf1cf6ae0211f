"""What NCCL sees of a team follows from the cluster file, and what a file leaves out is said."""

from dataclasses import replace
from typing import Any

import pytest

from autosync.cluster import Cluster, Device, Node, Transport
from autosync.cluster.cluster_file import load_cluster
from autosync.simulator.topology import topology_of, topology_of_team


def cluster(
    device: str,
    gpus: int,
    nodes: int = 2,
    transport: Transport = "infiniband",
    intra_bandwidth_gbps: float = 2808.0,
    **of_node: Any,
) -> Cluster:
    devices, ports = (Device(device, gpus),), dict[str, Any](nics=8, nic_gbps=400.0)
    node = Node("n0", devices, 3104.0, intra_bandwidth_gbps, **ports, **of_node)
    named = tuple(replace(node, address=f"n{place}") for place in range(nodes))
    return Cluster("test", named, "nccl", transport=transport)


def test_a_cloud_file_states_its_graph() -> None:
    topology = topology_of(load_cluster("aws-p5-48xlarge-x4"))
    assert (topology.nodes, topology.gpus_per_node, topology.ranks) == (4, 8, 32)
    assert (topology.gpu_link, topology.network) == ("nvlink4", "efa")
    assert topology.switched
    assert topology.nics == 32
    assert topology.node_gbytes_per_second == pytest.approx(400.0)
    assert topology.assumed == ()


def test_half_of_a_nodes_gpus_use_half_of_its_nics() -> None:
    given = cluster("h100", 8)
    assert topology_of(given).nics == 8
    assert topology_of_team(given, (0, 1, 2, 3, 8, 9, 10, 11)).nics == 4
    leaders = topology_of_team(given, (0, 8))
    assert (leaders.nodes, leaders.gpus_per_node, leaders.nics) == (2, 1, 1)


def test_a_team_within_a_node_has_no_network() -> None:
    topology = topology_of_team(cluster("h100", 8), tuple(range(8)))
    assert (topology.nodes, topology.transport, topology.nic_gbytes_per_second) == (1, "", 0.0)


def test_a_transport_that_is_not_stated_is_taken_by_latency_and_said() -> None:
    given = cluster("h100", 8, transport="")
    for latency_us, transport in ((5.0, "infiniband"), (30.0, "tcp")):
        nodes = tuple(replace(node, latency_us=latency_us) for node in given.nodes)
        topology = topology_of(replace(given, nodes=nodes))
        assert topology.transport == transport
        assert "states no transport" in topology.assumed[0]


def test_bridges_join_two_cards_and_no_more() -> None:
    pair = topology_of(cluster("rtx-3090", 2, 1, "", gpu_link="nvlink"))
    four = topology_of(cluster("rtx-3090", 4, 1, "", gpu_link="nvlink"))
    assert pair.gpu_link == "nvlink3"
    assert four.gpu_link == "pcie4-without-p2p"


def test_cut_links_are_taken_as_stated() -> None:
    whole = topology_of(cluster("h100", 8))
    cut = topology_of(cluster("h100", 8, intra_bandwidth_gbps=1600.0))
    assert whole.link_gbytes_per_second == 450.0
    assert cut.link_gbytes_per_second == 200.0


def test_of_unlike_nodes_the_slowest_counts() -> None:
    fast, slow = cluster("h100", 8).nodes[0], cluster("a100", 4).nodes[1]
    mixed = replace(cluster("h100", 8), nodes=(fast, replace(slow, nics=4, bandwidth_gbps=1552.0)))
    topology = topology_of(mixed)
    assert (topology.gpu, topology.gpus_per_node, topology.nics) == ("a100", 8, 4)


def test_efa_has_generations() -> None:
    given = {
        name: topology_of(cluster(name, 8, transport="efa")) for name in ("v100", "a100", "h100")
    }
    assert [each.network for each in given.values()] == ["efa-early", "efa-early", "efa"]
    assert [each.staged for each in given.values()] == [True, False, False]
