"""Classes of alike servers and resources: what they keep, and that limits stay the same."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.optimize import linprog

from autosync.allowed import Allowed
from autosync.domain import Domain
from autosync.population import encode
from autosync.simulator.cost.link_resources import alike_loads, number_equal_rows
from autosync.simulator.cost.network import network_of
from autosync.simulator.cost.synchronizer_costs import costs_of_synchronizers
from autosync.simulator.limit import least_transfer
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import AllReduce, ParameterServer, ReduceScatter, Synchronizer
from tests.domains import chain_graph, domain_of
from tests.simulator.random_clusters import random_cluster
from tests.simulator.worked_examples import cluster_of, strategy_of

F64 = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


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


def load_of_each(domain: Domain, synchronizers: list[Synchronizer]) -> F64:
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
    every: list[Synchronizer] = [
        AllReduce(0),
        AllReduce(0, "tree"),
        AllReduce(0, "hierarchical"),
        ReduceScatter(0),
    ]
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
