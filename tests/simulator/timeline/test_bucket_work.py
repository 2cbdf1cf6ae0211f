"""What ranks compute for messages, by hand. A rate of 0.8 Gbit/s is 100 MB/s."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Cluster
from autosync.domain import Domain
from autosync.population import encode
from autosync.profiling import EFFICIENCY
from autosync.simulator.cost.compute_time import update_seconds_of_buckets
from autosync.simulator.limit import iteration_limit
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.iteration_trace import simulate_trace
from autosync.strategy import AllGather, AllReduce, Factors, ParameterServer, Schedule
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, period, strategy_of

ROWS, SIDE = 10, 1000
CPU_FLOPS_PER_SECOND = 1e11 * EFFICIENCY
"""What `devices` states of a CPU, of which products reach a share."""
REBUILT = 2 * 4 * ROWS * SIDE * SIDE / CPU_FLOPS_PER_SECOND
"""Seconds in which the factors of four ranks are multiplied."""


def layers(cluster: Cluster, count: int, operation_seconds: float = 1e-6) -> Domain:
    """Linear layers of SIDE x SIDE, ROWS factors each: 80 KB from every rank to every other one."""
    graph = chain_graph(((SIDE, SIDE),) * count, factor_rows=ROWS)
    slow = tuple(replace(each, forward_flops=1) for each in graph.operations)
    return domain_of(replace(graph, operations=slow), cluster, operation_seconds)


def test_a_gradient_of_factors_is_there_when_all_ranks_products_are_added_up() -> None:
    domain = layers(cluster_of(), 1)
    # Three sends of 80 KB at 100 MB/s, then the product: its FLOPs are 8e7.
    sent = period(domain, strategy_of(domain, Factors))
    assert sent == pytest.approx([3e-6 + 2.4e-3 + REBUILT])


def test_products_take_the_profiles_rate_where_it_is_higher() -> None:
    domain = layers(cluster_of(), 1)
    fast = tuple(replace(each, forward_flops=10**6) for each in domain.graph.operations)
    domain = replace(domain, graph=replace(domain.graph, operations=fast))
    # 1e6 FLOPs in a microsecond: 8e7 take 80 of them.
    assert period(domain, strategy_of(domain, Factors)) == pytest.approx([3e-6 + 2.4e-3 + 80e-6])


def test_unknown_flops_cost_nothing() -> None:
    domain = layers(cluster_of(), 1)
    unknown = tuple(replace(each, forward_flops=0) for each in domain.graph.operations)
    domain = replace(domain, graph=replace(domain.graph, operations=unknown))
    assert period(domain, strategy_of(domain, Factors)) == pytest.approx([3e-6 + 2.4e-3])


def test_a_channel_rebuilds_one_message_at_a_time() -> None:
    domain = layers(cluster_of(gbps=8.0), 2)
    # Issued at 2 and 4 us, the two share their links until 0.48 ms; then one product follows the
    # other, and two forward operations of a microsecond.
    sent = period(domain, strategy_of(domain, Factors))
    assert sent == pytest.approx([0.48e-3 + 2 * REBUILT + 2e-6])


@pytest.mark.parametrize("slowdown", [0.0, 0.25])
def test_the_trace_of_the_slowest_rank_lasts_the_period(slowdown: float) -> None:
    cluster = replace(cluster_of(), overlap_slowdown=slowdown)
    domain = layers(cluster, 3, 1e-3)
    strategy = strategy_of(domain, Factors, Schedule(overlap_forward=True))
    population = encode([strategy], domain)
    trace = simulate_trace(compile_plans_fast(population, domain), population, domain)
    seconds = period(domain, strategy)[0]
    assert max(each.stop_seconds for each in trace.compute) == pytest.approx(2 * seconds)
    assert seconds >= iteration_limit(domain).seconds


def test_an_update_is_of_the_touched_rows() -> None:
    graph = chain_graph(((1000, 8), (16,)), sparse=(0,))
    domain = domain_of(graph, cluster_of(), 1e-3)
    domain = replace(domain, profile=replace(domain.profile, update_seconds=8e-3))
    # Two rows of 8 elements and a vector of 16: a quarter of a millisecond an element.
    strategy = strategy_of(domain, lambda v: AllReduce(1) if v else AllGather(0))
    plans = compile_plans_fast(encode([strategy], domain), domain)
    assert sorted(update_seconds_of_buckets(plans, domain)) == pytest.approx([4e-3, 4e-3])
    still = replace(domain, profile=replace(domain.profile, update_seconds=0.0))
    assert period(domain, strategy) - period(still, strategy) == pytest.approx([8e-3])


def test_the_owner_of_a_table_updates_its_touched_rows() -> None:
    graph = chain_graph(((1000, 8), (16,)), sparse=(0,))
    domain = domain_of(graph, cluster_of(), 1e-3)
    domain = replace(domain, profile=replace(domain.profile, update_seconds=8e-3))
    strategy = strategy_of(domain, lambda v: ParameterServer(0, v))
    plans = compile_plans_fast(encode([strategy], domain), domain)
    assert np.sum(update_seconds_of_buckets(plans, domain)) == pytest.approx(8e-3)
