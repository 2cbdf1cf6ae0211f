"""Equations 1 to 3 by hand: what each term is, and that hierarchy, balance and merging pay."""

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.cluster import Cluster
from autosync.domain import Domain
from autosync.population import encode
from autosync.simulator.analytic import AnalyticSimulator
from autosync.strategy import (
    AllGather,
    AllReduce,
    Factors,
    ParameterServer,
    ReduceScatter,
    Strategy,
    Synchronizer,
)
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, strategy_of

MEGABYTE = (250_000,)  # float32 elements of one megabyte
RATE = 1e8  # bytes a second, 0.8 Gbit/s


def seconds(domain: Domain, *strategies: Strategy) -> NDArray[np.float64]:
    return AnalyticSimulator().predict(domain, encode(list(strategies), domain))


def four_megabytes(cluster: Cluster | None = None) -> Domain:
    return domain_of(chain_graph((MEGABYTE,) * 4), cluster or cluster_of(), 0.0)


def test_a_ring_all_reduce_moves_every_byte_2_w_minus_1_over_w_times() -> None:
    domain = four_megabytes(cluster_of(startup=1e-3, per_worker=1e-4))
    merged = strategy_of(domain, lambda v: AllReduce(0))
    single = strategy_of(domain, lambda v: AllReduce(v))
    transfer, startup = 2 * 3 / 4 * 4e6 / RATE, 1e-3 + 4 * 1e-4
    assert seconds(domain, merged, single) == pytest.approx(
        [transfer + startup, transfer + 4 * startup]
    )


def test_balance_lowers_the_time_of_servers() -> None:
    domain = four_megabytes()
    one = strategy_of(domain, lambda v: ParameterServer(0, 0))
    spread = strategy_of(domain, lambda v: ParameterServer(v, v))
    # Three workers send each byte and get it back.
    assert seconds(domain, one, spread) == pytest.approx([2 * 3 * 4e6 / RATE, 2 * 3 * 1e6 / RATE])


def test_hierarchy_lowers_the_time_of_a_server_among_nodes_of_several_ranks() -> None:
    domain = four_megabytes(cluster_of(nodes=2, ranks_per_node=4, intra_gbps=80.0))
    flat = strategy_of(domain, lambda v: ParameterServer(0, 0))
    by_node = strategy_of(domain, lambda v: ParameterServer(0, 0, hierarchical=True))
    inside = 1e10
    flat_seconds = 2 * (4 * 4e6 / RATE + 3 * 4e6 / inside)
    hierarchical_seconds, expected = seconds(domain, by_node, flat)
    assert expected == pytest.approx(flat_seconds)
    # One leader per node crosses the network; inside, a reduction and a broadcast.
    assert hierarchical_seconds == pytest.approx(2 * 4e6 / RATE + 2 * 4e6 / inside, rel=0.01)


def test_hierarchy_lowers_the_time_of_collectives_whose_ring_crosses_nodes_often() -> None:
    domain = four_megabytes(cluster_of(nodes=2, ranks_per_node=4, intra_gbps=80.0))
    ring = strategy_of(domain, lambda v: AllReduce(0))
    by_node = strategy_of(domain, lambda v: AllReduce(0, "hierarchical"))
    ring_seconds, hierarchical_seconds = seconds(domain, ring, by_node)
    assert ring_seconds == pytest.approx(2 * 7 / 8 * 4e6 / RATE)
    assert hierarchical_seconds == pytest.approx(4e6 / RATE + 2 * 4e6 / 1e10, rel=0.01)
    assert hierarchical_seconds < ring_seconds


def test_every_synchronizer_has_a_formula() -> None:
    graph = chain_graph(((1000, 100), (500, 500)), sparse=(0,), factor_rows=8)
    domain = domain_of(graph, cluster_of(), 0.0)
    rows_bytes = 2 * (100 * 4 + 8)

    def both(dense: Synchronizer) -> Strategy:
        return strategy_of(domain, lambda v: dense if v else AllGather(9))

    all_reduce, halves, tree, factors = seconds(
        domain,
        both(AllReduce(0)),
        both(ReduceScatter(0)),
        both(AllReduce(0, "tree")),
        both(Factors(0)),
    )
    sparse = 3 * rows_bytes / RATE
    assert all_reduce == pytest.approx(sparse + 1.5 * 1e6 / RATE)
    assert halves == pytest.approx(all_reduce)
    assert tree == pytest.approx(sparse + 2 * 1e6 / RATE)
    assert factors == pytest.approx(sparse + 3 * 8 * 1000 * 4 / RATE)


def test_the_slowest_link_of_the_ring_sets_its_pace() -> None:
    domain = four_megabytes(cluster_of(gbps=(0.8, 0.8, 0.8, 0.2)))
    assert seconds(domain, strategy_of(domain, lambda v: AllReduce(0))) == pytest.approx(
        [1.5 * 4e6 / (RATE / 4)]
    )


def test_compute_hides_what_is_shorter() -> None:
    domain = domain_of(chain_graph((MEGABYTE,) * 4), cluster_of(), 1.0)
    assert seconds(domain, strategy_of(domain, lambda v: AllReduce(0))) == pytest.approx([12.0])


def test_names_of_hosts_and_groups_change_nothing() -> None:
    domain = four_megabytes()
    some = strategy_of(domain, lambda v: ParameterServer(v % 2, v % 2))
    other = strategy_of(domain, lambda v: ParameterServer(3 - v % 2, 7 - v % 2))
    first, second = seconds(domain, some, other)
    assert first == second


def test_ranks_that_own_on_nccl_serve_side_by_side_with_rows_alone() -> None:
    for sparse, share in (((), 1.0), ((0, 1), 0.5)):
        graph = chain_graph(((1000, 100),) * 2, sparse=sparse)
        domain = domain_of(graph, cluster_of(backend="nccl"), 0.0)
        one = strategy_of(domain, lambda v: ParameterServer(0, v))
        spread = strategy_of(domain, lambda v: ParameterServer(v, v))
        alone, shared = seconds(domain, one, spread)
        assert shared == pytest.approx(share * alone)
