"""Published methods as strategies: what they send, when, and to whom."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from autosync.cluster import Cluster
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotFound
from autosync.population import encode
from autosync.search.designs.mg_wfbp import mg_wfbp_strategy
from autosync.search.designs.published_methods import METHODS, PIECE_BYTES, method_named
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator, play_one
from autosync.strategy import AllReduce, ParameterServer, Strategy
from autosync.verification import verify
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, strategy_of

SIZES = ((250_000,), (3_000_000,), (1000,), (500_000,), (70_000,), (1_250_000,))


def domain_with(cluster: Cluster, operation_seconds: float = 5e-3) -> Domain:
    return domain_of(chain_graph(SIZES), cluster, operation_seconds)


def seconds(domain: Domain, *strategies: Strategy) -> list[float]:
    predicted = TimelineSimulator().predict(domain, encode(list(strategies), domain))
    return [float(each) for each in predicted]


def merged(domain: Domain, cuts: tuple[bool, ...]) -> Strategy:
    """Gradients in ready order, a new message where `cuts` says so."""
    number = np.cumsum([False, *cuts])
    group = dict(zip(domain.graph.gradient_order, map(int, number), strict=True))
    return strategy_of(domain, lambda v: AllReduce(group[v]))


@pytest.mark.parametrize("startup", [0.0, 2e-3, 20e-3, 1.0])
def test_no_merging_of_neighbours_beats_mg_wfbp(startup: float) -> None:
    domain = domain_with(cluster_of(backend="nccl", startup=startup))
    best = mg_wfbp_strategy(domain)
    verify(best, domain)
    every = [merged(domain, cuts) for cuts in product((False, True), repeat=len(SIZES) - 1)]
    mine, *others = seconds(domain, best, *every)
    assert mine == pytest.approx(min(others))


def test_mg_wfbp_merges_more_the_more_a_startup_costs() -> None:
    counts = [
        len({shard.group for choice in mg_wfbp_strategy(domain).choices for shard in choice.shards})
        for startup in (0.0, 5e-3, 1.0)
        for domain in [domain_with(cluster_of(backend="nccl", startup=startup))]
    ]
    assert counts[0] > counts[-1] == 1
    assert all(fewer <= more for more, fewer in pairwise(counts))


def test_mg_wfbp_gathers_sparse_gradients_and_merges_on_either_side() -> None:
    graph = chain_graph(((8, 4),) * 5, sparse=(2,))
    strategy = mg_wfbp_strategy(domain_of(graph, cluster_of(backend="nccl", startup=1.0)))
    verify(strategy, domain_of(graph, cluster_of(backend="nccl")))
    kinds = [(choice.shards[0].kind, choice.shards[0].group) for choice in strategy.choices]
    assert kinds[0] == kinds[1] == ("all_reduce", kinds[0][1])
    assert kinds[3] == kinds[4] == ("all_reduce", kinds[3][1])
    assert kinds[2][0] == "all_gather"
    assert len({group for _, group in kinds}) == 3


def test_after_backward_means_that_nothing_is_issued_before() -> None:
    domain = domain_with(cluster_of(2, 2, servers=2, backend="nccl"))
    for name, after in (("BSP-PS", True), ("WFBP-PS", False), ("BSP-A2A", True)):
        population = encode([method_named(name).build(domain)], domain)
        plans = compile_plans_fast(population, domain)
        first = play_one(plans, population, domain, 0).issued.min()
        assert (first >= domain.timing.backward_seconds - 1e-12) == after, name


def test_pieces_spread_over_dedicated_servers_only() -> None:
    domain = domain_with(cluster_of(2, 2, servers=2, backend="nccl"))
    verify(method_named("WFBP-PS").build(domain), domain)
    loads = {4: 0, 5: 0}
    for choice in method_named("WFBP-PS").build(domain).choices:
        for shard, length in zip(choice.shards, choice.partition.lengths, strict=True):
            assert isinstance(shard, ParameterServer)
            assert shard.hierarchical
            assert length * 4 <= PIECE_BYTES
            loads[shard.server] += length
    assert abs(loads[4] - loads[5]) * 4 <= PIECE_BYTES


def test_one_worker_host_needs_no_server() -> None:
    domain = domain_with(cluster_of(1, 4, servers=1, backend="nccl"))
    strategy = method_named("ByteScheduler-PS").build(domain)
    assert {shard.kind for choice in strategy.choices for shard in choice.shards} == {"all_reduce"}
    verify(strategy, domain)


def test_servers_are_asked_for_where_there_are_none() -> None:
    domain = domain_with(cluster_of(2, 2, backend="nccl"))
    with pytest.raises(InvalidInput, match="server_only"):
        method_named("BSP-PS").build(domain)


def test_bytescheduler_sends_a_modules_gradients_together() -> None:
    graph = chain_graph(SIZES)
    last = len(SIZES) - 1
    together = tuple(min(after + 1, last) if after % 2 == 0 else after for after in range(last + 1))
    graph = replace(graph, gradient_after=together)
    domain = domain_of(graph, cluster_of(backend="nccl"))
    strategy = method_named("ByteScheduler-A2A").build(domain)
    verify(strategy, domain)
    groups = [choice.shards[0].group for choice in strategy.choices]
    assert [groups[i] == groups[i + 1] for i in range(0, last, 2)] == [True] * 3
    assert len(set(groups)) == 3


def test_names_are_those_of_the_tables_in_any_case() -> None:
    assert method_named("mg-wfbp") is METHODS["MG-WFBP"]
    with pytest.raises(NotFound, match="WFBP-A2A"):
        method_named("WFBP")
