"""Connections with a rate of their own: what several carry adds up to the ports' rates."""

from dataclasses import replace

import pytest

from autosync.codes import Op
from autosync.errors import InvalidInput
from autosync.plan.plan_table import ALL_RANKS, team_table
from autosync.simulator.cost.network import Network, network_of
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of


def costs_at(connection_gbps: float, servers: int = 0, nodes: int = 4) -> Network:
    cluster = cluster_of(nodes, 1, gbps=40.0, backend="nccl", servers=servers)
    cluster = replace(cluster, connection_gbps=connection_gbps)
    return network_of(cluster, team_table(domain_of(chain_graph(), cluster), ()))


def seconds_per_gigabit(costs: Network, operation: Op, root: int = -1) -> float:
    kind = int(costs.kind_of(operation, ALL_RANKS, root))
    return float(costs.seconds_per_byte[kind]) * 1e9 / 8


def test_a_ring_has_one_connection_between_two_hosts() -> None:
    assert seconds_per_gigabit(costs_at(0.0), Op.ALL_REDUCE) == pytest.approx(1.5 / 40)
    assert seconds_per_gigabit(costs_at(10.0), Op.ALL_REDUCE) == pytest.approx(1.5 / 10)
    assert seconds_per_gigabit(costs_at(80.0), Op.ALL_REDUCE) == pytest.approx(1.5 / 40)


def test_a_server_is_faster_the_more_connections_it_has_up_to_its_port() -> None:
    for nodes, seconds in ((2, 1 / 10), (4, 1 / 10), (8, 8 / 40)):
        costs = costs_at(10.0, servers=1, nodes=nodes)
        assert seconds_per_gigabit(costs, Op.PUSH, nodes) == pytest.approx(seconds)


def test_a_connection_alone_leaves_the_port_to_others() -> None:
    costs = costs_at(10.0)
    kind = int(costs.kind_of(Op.ALL_REDUCE, ALL_RANKS))
    assert costs.utilization[kind].max() == pytest.approx(10 / 40)


def test_impossible_rates_are_refused() -> None:
    with pytest.raises(InvalidInput, match="connection_gbps"):
        replace(cluster_of(), connection_gbps=-1.0)
    with pytest.raises(InvalidInput, match="transfer_slowdown"):
        replace(cluster_of(), transfer_slowdown=-1.0)
