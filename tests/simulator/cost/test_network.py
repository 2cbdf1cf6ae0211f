"""What messages load of links, by hand, and classes of servers and links that are alike."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from autosync.allowed import Allowed
from autosync.cluster import Backend, Cluster, Device, Node
from autosync.codes import Op
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.plan.plan_table import ALL_RANKS, FIRST_SERVER, NODE_TEAMS, team_table
from autosync.population import encode
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.link_resources import (
    alike_loads,
    load_of,
    number_equal_rows,
    passing,
    resources_of,
)
from autosync.simulator.cost.network import link_seconds_per_byte, network_of
from autosync.simulator.cost.network_arrays import Network
from autosync.simulator.cost.synchronizer_costs import costs_of_synchronizers
from autosync.simulator.limit import least_transfer
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import AllGather, AllReduce, ParameterServer, ReduceScatter, Synchronizer
from tests.domains import chain_graph, domain_of, grid_cluster
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
        message_class = costs.message_class[operation, team, place]
        load = flows = np.zeros(len(where.rate))
        for ranks in teams[team]:
            root = place - 1
            if team == NODE_TEAMS and root not in ranks:
                root = -1
            backend = backend_of(cluster)
            carried = backend.carried_as(Op(operation), root < cluster.world_size)
            edges = backend.edges_of(carried, ranks, root)
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


def test_a_chain_pays_the_latency_of_each_of_its_hops_once() -> None:
    cluster = replace(grid_cluster(2, 4), backend="nccl")
    costs = network_of(cluster, team_table(domain_of(chain_graph(), cluster), ()))
    assumed = cluster.cost("reduce")
    startup = assumed.startup_seconds + 8 * assumed.startup_seconds_per_worker
    # Of seven hops one goes to the other host, in 50 us.
    for operation, root in ((Op.REDUCE, -1), (Op.BROADCAST, -1), (Op.PUSH, 0), (Op.PULL, 0)):
        kind = int(costs.class_of(operation, ALL_RANKS, root))
        assert costs.startup_seconds[kind] == pytest.approx(startup + 50e-6)


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


def test_equal_rows_get_one_number_by_first_appearance() -> None:
    table = np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 2.0], [-0.0, 1.0]])
    assert number_equal_rows(table).tolist() == [0, 1, 0, 1]
    assert number_equal_rows(table, np.arange(4.0)[:, None]).tolist() == [0, 1, 2, 3]


def test_of_equal_servers_one_is_left_and_of_what_they_load_the_mean() -> None:
    loads = alike_loads(np.ones((1, 3)), [np.eye(3)])
    assert loads.plain.tolist() == [[1.0]]
    assert [each.tolist() for each in loads.owned] == [[[pytest.approx(1 / 3)]]]


def test_servers_that_load_alike_links_unlike_are_kept_apart() -> None:
    loads = alike_loads(np.ones((1, 3)), [np.diag([1.0, 1.0, 2.0])])
    assert loads.owned[0].tolist() == [[0.5, 0.0], [0.0, 2.0]]


def test_a_limit_looks_at_as_little_of_many_equal_nodes_as_of_few() -> None:
    """All but trees, in which the nodes' places differ."""
    allowed = Allowed(all_reduce=False)
    few, many = (
        costs_of_synchronizers(domain_of(chain_graph(), cluster_of(nodes, 4)), allowed)
        for nodes in (3, 12)
    )
    assert few.load.shape == many.load.shape


def _always(synchronizer: Synchronizer, variable: int) -> Synchronizer:
    return synchronizer


def load_of_each(domain: Domain, synchronizers: list[Synchronizer]) -> NDArray[np.float64]:
    """`(synchronizers, resources)`: seconds per byte of a variable, each compiled by itself."""
    strategies = [strategy_of(domain, partial(_always, each)) for each in synchronizers]
    plans = compile_plans_fast(encode(strategies, domain), domain)
    costs = network_of(domain.cluster, plans.teams)
    load = np.zeros((len(strategies), costs.load.shape[1]))
    strategy = np.repeat(np.arange(len(strategies)), np.diff(plans.first))
    each = plans.wire_bytes[:, None] * costs.load[costs.classes_of(plans)]
    np.add.at(load, strategy, each)
    return load / float(domain.variables.size_bytes.sum())


@pytest.mark.parametrize("seed", range(12))
def test_a_limit_is_that_over_every_server_and_link(seed: int) -> None:
    cluster = replace(random_cluster(np.random.default_rng(seed)), links=())
    domain = domain_of(chain_graph(((640, 320), (96, 960))), cluster)
    owned: list[Synchronizer] = [
        ParameterServer(server, 0, hierarchical)
        for server in range(cluster.servers)
        for hierarchical in (False, True)
    ]
    every: list[Synchronizer] = [AllReduce(0), AllReduce(0, "tree"), ReduceScatter(0)]
    every.append(AllReduce(0, "hierarchical"))
    load = load_of_each(domain, [*every, *owned])
    solved = linprog(
        np.append(np.zeros(len(load)), 1.0),
        A_ub=np.column_stack([load.T / load.max(), -np.ones(load.shape[1])]),
        b_ub=np.zeros(load.shape[1]),
        A_eq=np.append(np.ones(len(load)), 0.0)[None],
        b_eq=[1.0],
    )
    size_bytes = domain.variables.size_bytes
    needs = solved.fun * load.max() * size_bytes
    found = least_transfer(domain, Allowed())
    assert found == pytest.approx(needs, rel=1e-6)


EVERYONE = (0, 1, 2, 3)
NIC_BYTES_PER_SECOND = 1e8


@pytest.mark.parametrize(
    ("operation", "backend", "bytes_across"),
    [
        (Op.ALL_REDUCE, "gloo", 1.5),
        (Op.REDUCE_SCATTER, "gloo", 1.0),  # 2 senders, 2 receivers, a quarter each
        (Op.ALL_GATHER, "gloo", 1.0),
        (Op.ALL_GATHER, "nccl", 0.75),  # a ring crosses once, with three quarters
        (Op.FACTOR_ALL_GATHER, "gloo", 4.0),  # 2 senders, 2 receivers, everything
        (Op.SPARSE_ALL_GATHER, "nccl", 4.0),  # ragged messages take gloo on any backend
    ],
)
def test_bytes_across(operation: Op, backend: Backend, bytes_across: float) -> None:
    cluster = cluster_of(2, 2, backend=backend)
    seconds = link_seconds_per_byte(cluster, operation, EVERYONE)
    assert seconds == pytest.approx(bytes_across / NIC_BYTES_PER_SECOND)
