"""gloo's messages alone: trees forward whole messages, rings wait, reduces gather at the end."""

from dataclasses import replace
from math import log2
from statistics import median

import pytest

from autosync.cluster import Cluster, Device, MessageCost, Node
from autosync.codes import Op
from autosync.plan.plan_table import ALL_RANKS, cluster_teams
from autosync.simulator.cost.network import network_of
from benchmarks.published.gloo_messages import error_share, gloo_messages, left_out_seconds


def seconds_per_byte(cluster: Cluster, operation: Op) -> float:
    network = network_of(cluster, cluster_teams(cluster))
    return float(network.seconds_per_byte[int(network.class_of(operation, ALL_RANKS))])


def apart(ranks: int, connection_gbps: float = 0.0) -> Cluster:
    """Hosts of one device at 8 Gbit/s: a byte takes a nanosecond."""
    nodes = tuple(
        Node(f"10.0.0.{place}", (Device("cpu"),), 8.0, latency_us=0.0)
        for place in range(1, ranks + 1)
    )
    return Cluster("apart", nodes, connection_gbps=connection_gbps)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32])
def test_a_broadcast_goes_down_a_tree_whose_parents_share_their_ports(ranks: int) -> None:
    depth = log2(ranks)
    found = seconds_per_byte(apart(ranks), Op.BROADCAST)
    assert found == pytest.approx(1e-9 * depth * (depth + 1) / 2)


def test_a_slow_connection_holds_a_tree_only_where_few_share_the_port() -> None:
    found = seconds_per_byte(apart(4, connection_gbps=4.0), Op.BROADCAST)
    assert found == pytest.approx(1e-9 * (2 + 2))  # two connections fill the port, one does not


def test_a_tree_within_a_node_does_not_wait_for_the_network() -> None:
    nodes = tuple(
        Node(address, (Device("cpu", 4),), 8.0, intra_bandwidth_gbps=800.0, latency_us=0.0)
        for address in ("a", "b")
    )
    found = seconds_per_byte(Cluster("pair", nodes), Op.BROADCAST)
    assert 1e-9 <= found < 1.2e-9 * 4  # one child of the root is away, then its own are near


def test_a_reduce_takes_a_ring_and_then_a_gather() -> None:
    assert seconds_per_byte(apart(8), Op.REDUCE) == pytest.approx(2e-9)


def test_a_ring_waits_for_its_segments_by_the_latency() -> None:
    near = seconds_per_byte(apart(4), Op.ALL_REDUCE)
    assert near == pytest.approx(1.5e-9)
    nodes = tuple(replace(node, latency_us=1000.0) for node in apart(4).nodes)
    far = seconds_per_byte(replace(apart(4), nodes=nodes), Op.ALL_REDUCE)
    assert far - near == pytest.approx(1.5 * 0.674 * 1e-3 / 2**20)


@pytest.mark.parametrize("operation", [Op.ALL_REDUCE, Op.BROADCAST, Op.REDUCE])
def test_what_the_probe_has_measured_holds_all_that_a_message_waits_for(operation: Op) -> None:
    costs = tuple(MessageCost(kind, 1e-4) for kind in ("all_reduce", "broadcast", "reduce"))
    far = tuple(replace(node, latency_us=1000.0) for node in apart(4).nodes)
    network = network_of(
        measured := replace(apart(4), nodes=far, costs=costs), cluster_teams(measured)
    )
    place = int(network.class_of(operation, ALL_RANKS))
    assert network.seconds_per_byte[place] == network.load[place].max()


def test_what_was_measured_on_aws_is_predicted_at_scales_left_out() -> None:
    found = left_out_seconds(gloo_messages())
    assert len(found) == 96
    for operation in ("all_reduce", "broadcast", "reduce"):
        errors = sorted(
            error_share(row, seconds)
            for row, seconds in found.items()
            if row.operation == operation
        )
        assert median(errors) < 0.05
        assert errors[int(0.9 * len(errors))] < 0.15


def test_classes_take_the_shape_of_the_bytes_where_bytes_tell_nothing() -> None:
    network = network_of(apart(4), cluster_teams(apart(4)))
    assert network.class_of(Op.ALL_REDUCE, ALL_RANKS, -1, [1.0, 1e9]).shape == (2,)
