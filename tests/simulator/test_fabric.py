"""Rails and oversubscription: what crosses the spine, and how long that takes."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Backend, Cluster
from autosync.cluster.cluster_file import parse_cluster
from autosync.codes import Op
from autosync.errors import InvalidInput
from autosync.nccl_knobs import NcclKnobs
from autosync.plan.plan_table import ALL_RANKS, cluster_teams
from autosync.search.designs.known_designs import ddp
from autosync.simulator.backends.nccl.algorithms import OPERATIONS, Candidate, candidates
from autosync.simulator.collective_predictions import predicted_collectives
from autosync.simulator.cost.network import network_of
from autosync.simulator.explanation import explain
from autosync.simulator.fabric import Spine, double_tree
from autosync.simulator.topology import Topology, topology_of
from tests.domains import chain_graph, domain_of
from tests.simulator.test_topology import cluster


def hosts(
    nodes: int,
    oversubscription: float = 1.0,
    hosts_per_leaf: int = 0,
    rails: bool = False,
    pxn: bool | None = None,
    nics: int = 8,
) -> Cluster:
    plain = cluster("h100", 8, nodes, rails=rails)
    alike = tuple(
        replace(node, bandwidth_gbps=nics * 388.0, latency_us=5.0, nics=nics)
        for node in plain.nodes
    )
    fabric = replace(plain, oversubscription=oversubscription, hosts_per_leaf=hosts_per_leaf)
    return replace(fabric, nodes=alike, nccl=NcclKnobs(pxn=pxn))


def seconds_per_byte(topology: Topology, operation: str = "all_reduce") -> float:
    """Of a ring of large chunks."""
    return float(_ring(topology, operation).seconds_per_byte)


def _ring(topology: Topology, operation: str) -> Candidate:
    return next(
        each
        for each in candidates(topology, operation)
        if (each.algorithm, each.protocol) == ("Ring", "Simple")
    )


@pytest.mark.parametrize("nodes", [2, 3, 8, 33])
@pytest.mark.parametrize("rails", [False, True])
@pytest.mark.parametrize("pxn", [False, True])
def test_a_spine_that_carries_all_changes_nothing(nodes: int, rails: bool, pxn: bool) -> None:
    plain = topology_of(hosts(nodes, rails=rails, pxn=pxn))
    assert plain.spine is None
    for per_leaf in (1, 2, 4, 64):
        whole = replace(plain, spine=Spine(1.0, per_leaf, rails, 8, ()).of_hosts(nodes))
        for operation in OPERATIONS:
            pairs = zip(candidates(plain, operation), candidates(whole, operation), strict=True)
            for one, other in pairs:
                assert other.seconds_per_byte == pytest.approx(one.seconds_per_byte)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("rails", [False, True])
def test_times_grow_with_oversubscription_and_shrink_with_larger_leaves(
    operation: str, rails: bool
) -> None:
    sizes = np.array([2.0**30])

    def seconds(oversubscription: float, per_leaf: int) -> float:
        where = hosts(16, oversubscription, per_leaf, rails)
        return float(predicted_collectives(where, operation, sizes).seconds[0])  # type: ignore[arg-type]

    for per_leaf in (1, 4, 16):
        assert np.diff([seconds(each, per_leaf) for each in (1, 2, 4, 8)]).min() >= 0
    assert np.diff([seconds(8, each) for each in (1, 2, 4, 8, 16)]).max() <= 0


@pytest.mark.parametrize("rails", [False, True])
def test_of_a_ring_one_host_of_a_leaf_sends_over_the_spine(rails: bool) -> None:
    """Four hosts share what one of four NICs carries, and one of them needs it."""
    alone = seconds_per_byte(topology_of(hosts(8, rails=rails)))
    assert seconds_per_byte(topology_of(hosts(8, 4, 4, rails))) == pytest.approx(alone)
    assert seconds_per_byte(topology_of(hosts(8, 8, 4, rails))) == pytest.approx(2 * alone)
    assert seconds_per_byte(topology_of(hosts(8, 8, 8, rails))) == pytest.approx(alone)
    assert _ring(topology_of(hosts(8, 8, 4, rails)), "all_reduce").binding_at(1e9) == "spine"


def test_within_a_pod_only_what_changes_rails_crosses_the_spine() -> None:
    def times_alone(rails: bool, pxn: bool | None) -> float:
        one, other = (
            topology_of(hosts(2, oversubscription, 2, rails, pxn)) for oversubscription in (1, 4)
        )
        return seconds_per_byte(other, "all_to_all") / seconds_per_byte(one, "all_to_all")

    assert times_alone(False, False) == pytest.approx(1)  # both hosts on one leaf
    assert times_alone(True, None) == pytest.approx(1)  # NVLink carries it to its rail first
    # Of 8 sixteenths that a GPU sends to the other host, 7 change rails: 16 GPUs send 7 sixteenths
    # each over links that carry as much as 2 x 8 / 4 NICs, where 8 NICs carry 8 x 8 sixteenths.
    assert times_alone(True, False) == pytest.approx((16 * 7 / 16 / 4) / (8 * 8 / 16 / 8))


def test_the_double_tree_is_nccls() -> None:
    """As drawn in src/graph/trees.cc for twelve hosts."""
    edges = double_tree(12)
    first = {(8, 0), (4, 8), (10, 8), (2, 4), (6, 4), (9, 10), (11, 10)}
    mirrored = {(3, 11), (7, 3), (1, 3), (9, 7), (5, 7), (2, 1), (0, 1)}
    assert first | mirrored <= set(edges)
    for hosts_of_team in (2, 3, 8, 13):
        children = [child for child, _ in double_tree(hosts_of_team)]
        assert len(children) == 2 * (hosts_of_team - 1)
        assert {children.count(host) for host in range(hosts_of_team)} <= {1, 2}


def test_of_a_tree_few_edges_leave_a_leaf() -> None:
    eight = Spine(4.0, 4, False, 8, ()).of_hosts(8)
    # hosts 0 to 3: 3 has its parent at 2, 2 at 4, and 4 is the child of the root 0; mirrored alike
    assert eight.leaves == (4, 4)
    assert eight.tree_exits == 4 / 4
    assert Spine(4.0, 1, False, 8, ()).of_hosts(8).tree_exits == 1.0
    assert Spine(4.0, 8, False, 8, ()).of_hosts(8).tree_exits == 0.0


def test_servers_of_another_rail_are_reached_over_the_spine() -> None:
    """Where PXN is off: eight ranks of the other host send to the root's NIC, seven of them over a
    leaf whose links carry an eighth of what two NICs do."""

    def seconds(rails: bool, oversubscription: float) -> float:
        where = hosts(2, oversubscription, 2, rails, pxn=False)
        costs = network_of(where, cluster_teams(where))
        return float(costs.seconds_per_byte[int(costs.class_of(Op.SPARSE_PUSH, ALL_RANKS, 0))])

    alone = seconds(False, 1)
    assert seconds(False, 8) == alone
    assert seconds(True, 1) == alone
    assert seconds(True, 8) == pytest.approx(alone * (7 / (2 / 8)) / 8)


def test_gpus_that_share_a_nic_share_its_rate() -> None:
    """Eight rings of one GPU a host each, all at once."""

    def seconds(nics: int, oversubscription: float = 1) -> tuple[float, float]:
        where = hosts(4, oversubscription, nics=nics)
        one = ((0, 8, 16, 24),)
        together = tuple(tuple(range(part, 32, 8)) for part in range(8))
        teams = cluster_teams(where).with_added([one, together])
        costs = network_of(where, teams)
        found = [
            costs.seconds_per_byte[int(costs.class_of(Op.ALL_REDUCE, team, -1, 1e9))]
            for team in (len(teams) - 2, len(teams) - 1)
        ]
        return float(found[0]), float(found[1])

    one, together = seconds(nics=1)
    assert together == pytest.approx(8 * one, rel=0.1)
    one, together = seconds(nics=8)
    assert together == pytest.approx(one, rel=0.1)
    narrow, together = seconds(nics=8, oversubscription=4)  # without rails they share a leaf
    assert narrow == pytest.approx(one, rel=0.1)
    assert together == pytest.approx(4 * one, rel=0.1)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_what_binds_is_named(backend: Backend) -> None:
    where = replace(hosts(4, 8.0), backend=backend, nccl=None)
    large = predicted_collectives(where, "all_reduce", np.array([2.0**33])).binding[0]
    assert large.startswith("spine")
    domain = domain_of(chain_graph(((40_000_000,),) * 4), where, 1e-3)
    assert explain(domain, ddp(domain)).binding.startswith("spine")


def test_what_a_file_leaves_out_is_said() -> None:
    assert topology_of(hosts(4)).assumed == ()
    assert topology_of(hosts(4, 2, 4)).assumed == ()
    (racks,) = topology_of(hosts(4, 2)).assumed
    assert "states no hosts_per_leaf; all messages between hosts" in racks
    (pods,) = topology_of(hosts(4, 2, rails=True)).assumed
    assert "32 hosts are taken for a pod" in pods


def test_a_number_of_hosts_that_no_leaf_has_is_refused() -> None:
    text = """{name: racks, oversubscription: 2, hosts_per_leaf: %s, nodes: [
        {address: a, devices: [{type: t4}], bandwidth_gbps: 10},
        {address: b, devices: [{type: t4}], bandwidth_gbps: 10}]}"""
    assert parse_cluster(text % 4, "test").hosts_per_leaf == 4
    for given in ("-1", "1.5", "many"):
        with pytest.raises(InvalidInput, match="hosts_per_leaf"):
            parse_cluster(text % given, "test")
