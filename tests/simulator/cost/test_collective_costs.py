"""What messages cost on NCCL clusters whose files state no fitted costs."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Cluster, Device, Link, MessageCost, Node
from autosync.cluster.cluster_file import load_cluster
from autosync.cluster.collective_curve import CollectiveCurve
from autosync.codes import Op
from autosync.domain import Domain
from autosync.models import bundled
from autosync.plan.plan_table import ALL_RANKS, FIRST_SERVER, LEADERS, NODE_TEAMS, team_table
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs.known_designs import ddp
from autosync.simulator.backends.nccl import cost_segments
from autosync.simulator.cost.collective_costs import has_collective_model
from autosync.simulator.cost.network import network_of
from autosync.simulator.cost.network_arrays import Network
from autosync.simulator.explanation import explain
from autosync.simulator.topology import topology_of, topology_of_team
from autosync.strategy import AllReduce, ParameterServer
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, period, strategy_of

P5 = load_cluster("aws-p5-48xlarge-x4")


def gpus(nodes: int, each: int = 8, nics: int = 8, servers: int = 0) -> Cluster:
    hosts = [
        Node(f"10.0.0.{i + 1}", (Device("h100", each),), 3100.0, 2808.0, 5.0, nics=nics)
        for i in range(nodes)
    ]
    hosts += [Node(f"10.0.1.{i + 1}", (), 3100.0, None, 5.0, True) for i in range(servers)]
    return Cluster("by hand", tuple(hosts), "nccl", transport="infiniband")


def network(cluster: Cluster) -> Network:
    return network_of(cluster, team_table(domain_of(chain_graph(), cluster), ()))


@pytest.mark.parametrize("operation", [Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER])
def test_a_message_costs_the_line_of_its_size(operation: Op) -> None:
    costs, topology = network(P5), topology_of(P5)
    segments = cost_segments(topology, operation.name.lower())
    assert len(segments) > 1
    for segment in segments:
        for size in (segment.least_bytes, segment.least_bytes + 1000):
            kind = int(costs.class_of(operation, ALL_RANKS, -1, size))
            cost = costs.startup_seconds[kind] + size * costs.seconds_per_byte[kind]
            line = max(
                each.startup_seconds + size * each.seconds_per_byte
                for each in segments
                if each.least_bytes <= size
            )
            by_line = segment.startup_seconds + size * segment.seconds_per_byte
            assert by_line * 0.999 <= cost <= line * 1.001 or cost == pytest.approx(by_line)


def test_a_message_takes_what_was_measured_where_that_falls_with_size() -> None:
    """As at a change of protocol: its bytes are not added to the time that holds them already."""
    sizes, seconds = (2.0**20, 2.0**21, 2.0**22, 2.0**23), (2.0e-4, 3.0e-4, 2.4e-4, 3.2e-4)
    curve = CollectiveCurve("all_reduce", 32, 4, sizes, seconds)
    costs = network(replace(P5, curves=(curve,)))
    for size, measured in zip(sizes, seconds, strict=True):
        kind = int(costs.class_of(Op.ALL_REDUCE, ALL_RANKS, -1, size))
        found = costs.startup_seconds[kind] + size * costs.seconds_per_byte[kind]
        assert found == pytest.approx(measured, rel=0.06)


def test_classes_by_bytes_broadcast_and_never_leave_their_message() -> None:
    costs = network(P5)
    sizes = np.geomspace(1.0, 1e12, 60)
    kinds = costs.class_of(Op.ALL_REDUCE, ALL_RANKS, -1, sizes)
    assert (np.diff(kinds) >= 0).all()
    assert kinds[0] == costs.class_of(Op.ALL_REDUCE, ALL_RANKS)
    assert set(costs.operations[kinds]) == {int(Op.ALL_REDUCE)}
    assert len(np.unique(kinds)) > 1


def test_one_gpu_of_a_node_does_not_send_at_the_rate_of_all_nics() -> None:
    costs = network(P5)
    flat, leaders = (
        costs.seconds_per_byte[int(costs.class_of(Op.ALL_REDUCE, team, -1, 1e9))]
        for team in (ALL_RANKS, LEADERS)
    )
    assert leaders > 2 * flat


def test_gradients_of_gpt2_hide_behind_compute_on_four_p5() -> None:
    graph = bundled("gpt2_medium", 8)
    domain = Domain(graph, P5, profile_from_step_seconds(graph, 0.105, "h100"))
    (seconds,) = period(domain, ddp(domain))
    assert 0.105 < seconds < 0.125


def test_owners_that_are_alike_share_a_class_and_dedicated_ones_do_not() -> None:
    cluster = gpus(4, servers=2)
    costs = network(cluster)
    ranks = np.arange(cluster.world_size)
    kinds = costs.class_of(Op.PUSH, ALL_RANKS, ranks)
    assert len(np.unique(kinds)) == 2  # the first of each node, which leads it, and all others
    dedicated = costs.class_of(Op.PUSH, ALL_RANKS, cluster.world_size + np.arange(2))
    assert len(np.unique(dedicated)) == 1
    assert not set(dedicated.tolist()) & set(kinds.tolist())
    loads = costs.owner_loads(Op.PUSH, ALL_RANKS, cluster.world_size)
    assert len(np.unique(loads.kind)) == len(loads.own) == 2
    assert (loads.own > 0).all()  # each has a link of its own besides


def test_a_root_sees_what_all_send_to_it() -> None:
    costs = network(gpus(4, each=2, nics=2, servers=1))
    nic = 3100e9 / 8 / 2  # the one near its GPU; six ranks are on other nodes
    rows = int(costs.class_of(Op.SPARSE_PUSH, ALL_RANKS, 3))
    assert costs.seconds_per_byte[rows] == pytest.approx(6 / nic)
    dedicated = int(costs.class_of(Op.PUSH, ALL_RANKS, 8))
    assert costs.seconds_per_byte[dedicated] == pytest.approx(8 / (2 * nic))
    of_leaders = int(costs.class_of(Op.PUSH, FIRST_SERVER + 8, 8))
    assert costs.seconds_per_byte[of_leaders] == pytest.approx(4 / (2 * nic))


def test_a_message_of_a_rank_that_owns_is_a_collective_of_nccl() -> None:
    costs = network(gpus(4, each=2, nics=2))
    for message, carried in ((Op.PUSH, Op.REDUCE), (Op.PULL, Op.BROADCAST)):
        for size in (1.0, 1e6, 1e9):
            owned, whole = (
                int(costs.class_of(operation, ALL_RANKS, root, size))
                for operation, root in ((message, 3), (carried, -1))
            )
            assert costs.startup_seconds[owned] == costs.startup_seconds[whole]
            assert costs.seconds_per_byte[owned] == costs.seconds_per_byte[whole]
            np.testing.assert_array_equal(costs.load[owned], costs.load[whole])


def test_thousands_of_gpus_have_as_many_classes_as_few() -> None:
    few, many = network(gpus(4)), network(gpus(128))
    assert many.message_class.shape == few.message_class.shape
    assert many.load.shape[1] == few.load.shape[1]
    assert many.utilization.shape[1] <= few.utilization.shape[1] + 2


def test_the_link_that_is_held_longest_is_the_owners() -> None:
    domain = domain_of(chain_graph(((250_000,),) * 4), gpus(4, servers=2), 1e-3)
    told = explain(domain, strategy_of(domain, lambda v: ParameterServer(32, v)))
    assert told.busiest.startswith("link")
    spread = explain(domain, strategy_of(domain, lambda v: AllReduce(0)))
    assert "3 nodes like it" in spread.busiest


def test_costs_that_the_file_states_come_before_the_model() -> None:
    stated = replace(P5, costs=(MessageCost("all_reduce", 5e-3),))
    assert has_collective_model(P5)
    assert has_collective_model(replace(P5, costs=(MessageCost("engine", 1e-3),)))
    assert not has_collective_model(stated)
    assert not has_collective_model(replace(P5, backend="gloo"))
    assert not has_collective_model(cluster_of(backend="nccl"))  # processors know no NCCL
    kind = int(network(stated).class_of(Op.ALL_REDUCE, ALL_RANKS))
    assert network(stated).startup_seconds[kind] == 5e-3


def test_a_link_that_the_file_states_holds_a_ring_back() -> None:
    cluster = gpus(3)
    slow = replace(cluster, links=(Link(("10.0.0.1", "10.0.0.2"), 10.0),))
    plain, held = (
        costs.seconds_per_byte[int(costs.class_of(Op.ALL_REDUCE, ALL_RANKS, -1, 1e9))]
        for costs in (network(cluster), network(slow))
    )
    assert held == pytest.approx(2 * 23 / 24 / (10e9 / 8))
    assert held > 10 * plain


def test_the_slowest_nodes_team_counts() -> None:
    fast, slow = gpus(2), gpus(2, each=4, nics=2)
    nodes = (*fast.nodes, replace(slow.nodes[0], address="10.0.0.9", intra_bandwidth_gbps=500.0))
    mixed = replace(fast, nodes=nodes)
    teams = team_table(domain_of(chain_graph(), mixed), ())
    costs = network_of(mixed, teams)
    kind = int(costs.class_of(Op.REDUCE, NODE_TEAMS, -1, 1e9))
    slowest = cost_segments(topology_of_team(mixed, teams[NODE_TEAMS][-1]), "reduce")[-1]
    assert costs.seconds_per_byte[kind] == pytest.approx(slowest.seconds_per_byte, rel=0.01)


def test_dedicated_servers_serve_at_once() -> None:
    """Four worker hosts send to as many server hosts what one of them takes four times as long for:
    its NICs carry in and out at once, the last message behind all others."""

    def seconds(servers: int) -> float:
        cluster = gpus(4, servers=servers)
        domain = domain_of(chain_graph(((100_000_000,),) * 8), cluster, 1e-6)
        owned = strategy_of(domain, lambda v: ParameterServer(cluster.world_size + v % servers, v))
        (found,) = period(domain, owned)
        return float(found)

    carried = 32 * 400e6 / (3100e9 / 8)  # of one message
    assert seconds(1) == pytest.approx((8 + 1) * carried, rel=0.02)
    assert seconds(2) == pytest.approx((4 + 1) * carried, rel=0.02)
    assert seconds(4) == pytest.approx((2 + 1) * carried, rel=0.02)
