"""The text of an emulated cluster's commands: what a shaper lets pass is payload and headers."""

import pytest

from autosync.cluster import Cluster, Device, Node
from autosync.trials.testbed.link_shaping import emulated_nodes, node_shaping


def test_a_loopback_is_shaped_for_its_own_larger_frames() -> None:
    two, one = Node("a", (Device("cpu", 2),), 0.8, 0.4), Node("b", (Device("cpu"),), 0.8)
    shared, single = (node_shaping(node) for node in emulated_nodes(Cluster("c", (two, one)), 0.5))
    network, loopback = shared.splitlines()
    assert "dev eth0" in network
    assert rate_of(network) == pytest.approx(0.4e9 / 0.9564, rel=1e-4)
    assert "dev lo" in loopback
    assert rate_of(loopback) == pytest.approx(0.2e9 / 0.999, rel=1e-4)
    assert single == network


def rate_of(line: str) -> int:
    """Bits a second."""
    return int(line.split("rate ")[1].split("bit")[0])
