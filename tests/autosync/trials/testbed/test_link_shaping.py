"""The text of an emulated cluster's commands: what a shaper lets pass is payload and headers, and
how much a connection may have under way."""

import re

import pytest

from autosync.cluster import Cluster, Device, Link, Node
from autosync.trials.testbed.link_shaping import emulated_nodes, node_links, node_shaping


def test_a_loopback_is_shaped_for_its_own_larger_frames() -> None:
    two, one = Node("a", (Device("cpu", 2),), 0.8, 0.4), Node("b", (Device("cpu"),), 0.8)
    nodes = emulated_nodes(Cluster("c", (two, one)), 0.5, 1.0)
    shared, single = (node_shaping(node) for node in nodes)
    assert rate_of(shared, "eth0") == pytest.approx(0.4e9 / 0.9564, rel=1e-4)
    assert rate_of(shared, "lo") == pytest.approx(0.2e9 / 0.999, rel=1e-4)
    assert shared.startswith(single)
    assert "dev lo" not in single


def rate_of(commands: str, device: str) -> int:
    """Bits a second of all that a device carries."""
    found = re.search(rf"class add dev {device} parent 1: classid 1:1 htb rate (\d+)bit", commands)
    assert found
    return int(found[1])


@pytest.mark.parametrize("time_scale", [1.0, 4.0])
def test_a_connection_has_a_millisecond_of_the_clusters_time_under_way(time_scale: float) -> None:
    node = Node("a", (Device("cpu", 2),), 10.0, 100.0)
    far, near = (Node(name, (Device("cpu"),), 10.0) for name in "bc")
    cluster = Cluster("c", (node, far, near), links=(Link(("a", "b"), 40.0),))
    first, second, third = emulated_nodes(cluster, 1 / 32, time_scale)
    assert windows_of(node_links(first)) == {
        "10.77.0.0/16": 27,  # 10 Gbit/s / 32 for a millisecond, in packets of 1,448 bytes
        second.address: 108,
        first.address: 6,  # 100 Gbit/s / 32, in packets of 65,483 bytes
    }
    assert windows_of(node_links(third)) == {"10.77.0.0/16": 27}


def test_both_ends_of_a_pair_have_the_window_of_its_link() -> None:
    """A longer one at the fast end fills the queue in which the slow end would wait."""
    fast, slow = (Node(name, (Device("cpu"),), gbps) for name, gbps in (("a", 25.0), ("b", 10.0)))
    like = Node("c", (Device("cpu"),), 25.0)
    first, second, third = emulated_nodes(Cluster("c", (fast, slow, like)), 1 / 32, 2.0)
    assert windows_of(node_links(first)) == {"10.77.0.0/16": 67, second.address: 27}
    assert windows_of(node_links(second)) == {"10.77.0.0/16": 27}
    assert windows_of(node_links(third)) == {"10.77.0.0/16": 67, second.address: 27}


def test_no_window_is_shorter_than_what_a_connection_begins_with() -> None:
    slow = tuple(Node(name, (Device("cpu", 2),), 0.1, 0.2) for name in "ab")
    first, _ = emulated_nodes(Cluster("c", slow), 1 / 32, 1.0)
    assert windows_of(node_links(first)) == {"10.77.0.0/16": 10, first.address: 2}


def windows_of(commands: str) -> dict[str, int]:
    """Packets, by where a route goes."""
    found = re.findall(r"route .*?(10\.77\S+) dev .* cwnd lock (\d+)", commands)
    return {to: int(packets) for to, packets in found}
