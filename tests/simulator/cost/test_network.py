"""What messages cost: tables beside the sums they stand for, connections, rounds of rows."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.cluster import Cluster, Device, Node
from autosync.codes import Op
from autosync.errors import InvalidInput, NotSupported
from autosync.plan.plan_table import ALL_RANKS, FIRST_SERVER, NODE_TEAMS, team_table
from autosync.population import encode
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.link_resources import load_of, passing, resources_of
from autosync.simulator.cost.network import Network, network_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import AllGather, ParameterServer
from tests.domains import chain_graph, domain_of
from tests.simulator.random_clusters import random_cluster
from tests.simulator.worked_examples import cluster_of, period, strategy_of


def held(share: NDArray[np.float64], flows: NDArray[np.float64]) -> set[tuple[float, float]]:
    """What a message asks of resources and how often it flows there, but for idle resources."""
    pairs = zip(share.round(9).tolist(), flows.tolist(), strict=True)
    return {(share, flow) for share, flow in pairs if share > 0}


@pytest.mark.parametrize("seed", range(12))
def test_a_message_loads_links_as_its_teams_do_one_by_one(seed: int) -> None:
    cluster = random_cluster(np.random.default_rng(seed))
    teams = team_table(domain_of(chain_graph(), cluster), ())
    costs, where = network_of(cluster, teams), resources_of(cluster)
    for operation, team, place in np.argwhere(costs.message_class >= 0).tolist():
        message_class, nothing = (
            costs.message_class[operation, team, place],
            np.zeros(len(where.rate)),
        )
        load, flows = nothing, nothing
        for ranks in teams[team]:
            root = place - 1
            if team == NODE_TEAMS and root not in ranks:
                root = -1
            edges = backend_of(cluster).edges_of(Op(operation), ranks, root)
            load = load + load_of(edges, where)
            flows = flows + passing(edges, np.ones(len(edges.source)), where)
        assert np.allclose(costs.load[message_class], load, rtol=1e-12, atol=0.0)
        alone = costs.seconds_per_byte[message_class] or 1.0
        assert held(load / alone, flows) == held(
            costs.utilization[message_class], costs.flows[message_class]
        )


@pytest.mark.parametrize("seed", range(12))
def test_columns_are_kept_once_and_row_by_row(seed: int) -> None:
    cluster = random_cluster(np.random.default_rng(seed))
    costs = network_of(cluster, team_table(domain_of(chain_graph(), cluster), ()))
    columns = np.vstack([costs.utilization, costs.flows]).T
    assert len(np.unique(columns, axis=0)) == len(columns)
    # the kernel is compiled for rows of contiguous values: another order would compile it again
    assert costs.utilization.flags.c_contiguous
    assert costs.flows.flags.c_contiguous


def test_a_cluster_with_more_kinds_of_messages_than_codes_is_refused() -> None:
    cluster = Cluster("wide", (Node("10.0.0.1", (Device("v100", 5000),), 100.0, 600.0),))
    everyone = (tuple(range(5000)),)
    with pytest.raises(NotSupported, match="5000 servers"):
        network_of(cluster, (everyone,) * (FIRST_SERVER + 5000))


def costs_at(connection_gbps: float, servers: int = 0, nodes: int = 4) -> Network:
    cluster = cluster_of(nodes, 1, gbps=40.0, backend="nccl", servers=servers)
    cluster = replace(cluster, connection_gbps=connection_gbps)
    return network_of(cluster, team_table(domain_of(chain_graph(), cluster), ()))


def seconds_per_gigabit(costs: Network, operation: Op, root: int = -1) -> float:
    message_class = int(costs.class_of(operation, ALL_RANKS, root))
    return float(costs.seconds_per_byte[message_class]) * 1e9 / 8


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
    message_class = int(costs.class_of(Op.ALL_REDUCE, ALL_RANKS))
    assert costs.utilization[message_class].max() == pytest.approx(10 / 40)


def test_impossible_rates_are_refused() -> None:
    with pytest.raises(InvalidInput, match="connection_gbps"):
        replace(cluster_of(), connection_gbps=-1.0)
    with pytest.raises(InvalidInput, match="transfer_slowdown"):
        replace(cluster_of(), transfer_slowdown=-1.0)


def test_rows_pay_for_their_header_as_well() -> None:
    graph = chain_graph(((1000, 8),), sparse=(0,))
    domain = domain_of(graph, cluster_of(startup=5e-3), 1e-3)
    # Two rows of 40 bytes to three others, and two startups.
    sent = period(domain, strategy_of(domain, AllGather))
    assert sent == pytest.approx([3e-3 + 2 * 5e-3 + 3 * 80 / 1e8])


def test_every_message_of_rows_has_two_rounds_and_no_other() -> None:
    graph = chain_graph(((1000, 8), (16,)), sparse=(0,))
    domain = domain_of(graph, cluster_of(startup=5e-3), 1e-3)
    strategy = strategy_of(domain, lambda v: ParameterServer(0, v))
    plans = compile_plans_fast(encode([strategy], domain), domain)
    network = network_of(domain.cluster, plans.teams)
    startups = network.startup_seconds[network.classes_of(plans)]
    of_rows = [Op(operation).sparse for operation in plans.operation]
    assert startups == pytest.approx([10e-3 if rows else 5e-3 for rows in of_rows])
