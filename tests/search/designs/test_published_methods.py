"""Published methods as strategies: what they send, when, and to whom."""

from dataclasses import replace
from itertools import pairwise

import pytest

from autosync.cluster import Cluster
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotFound
from autosync.population import encode
from autosync.search.designs.published_methods import (
    METHODS,
    PIECE_BYTES,
    horovod,
    method_named,
    mg_wfbp,
)
from autosync.search.designs.wire_estimates import all_reduce_estimate
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import play_one
from autosync.strategy import AllReduce, ParameterServer, Strategy
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.worked_examples import cluster_of, period, strategy_of

SIZES = ((250_000,), (3_000_000,), (1000,), (500_000,), (70_000,), (1_250_000,))


def domain_with(cluster: Cluster, operation_seconds: float = 5e-3) -> Domain:
    return domain_of(chain_graph(SIZES), cluster, operation_seconds)


def messages_of(strategy: Strategy) -> list[int]:
    """The message of each variable, numbered in ready order."""
    groups = [choice.shards[0].group for choice in reversed(strategy.choices)]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return [numbers[group] for group in groups]


def test_mg_wfbp_waits_for_the_next_gradient_while_that_takes_less_than_a_startup() -> None:
    # gradients of 5, 0.28, 2, 0.004, 12 and 1 MB are ready every 10 ms from 10 ms on; a ring of
    # four at 0.8 Gbit/s takes 15 ms a MB
    for startup, messages in (
        (2e-3, [0, 1, 1, 1, 1, 1]),  # the first leaves at 10 ms and ends after all are ready
        (10e-3, [0, 1, 1, 1, 1, 1]),  # a wait as long as the startup saves nothing
        (11e-3, [0, 0, 0, 0, 0, 0]),  # greedy: each waits for one more, though it ends later
    ):
        domain = domain_with(cluster_of(backend="nccl", startup=startup))
        strategy = mg_wfbp(domain)
        verify(strategy, domain)
        assert messages_of(strategy) == messages, startup


def test_mg_wfbp_sees_gradients_when_the_slowest_rank_has_them() -> None:
    cluster = cluster_of(backend="nccl", startup=11e-3)
    device = replace(cluster.nodes[0].devices[0], slowdown=1.2)
    slow = replace(cluster.nodes[0], devices=(device,))
    domain = domain_with(replace(cluster, nodes=(slow, *cluster.nodes[1:])))
    # every 12 ms: the first does not wait; behind its 86 ms all others are there
    assert messages_of(mg_wfbp(domain)) == [0, 1, 1, 1, 1, 1]


def test_mg_wfbp_is_no_optimum_of_the_timeline() -> None:
    domain = domain_with(cluster_of(backend="nccl", startup=11e-3))
    first_alone = strategy_of(domain, lambda v: AllReduce(int(v == len(SIZES) - 1)))
    greedy, better = period(domain, mg_wfbp(domain), first_alone)
    assert better < greedy


def test_mg_wfbp_estimates_a_single_all_reduce() -> None:
    cluster = replace(cluster_of(backend="nccl", startup=2e-3, per_worker=1e-3), overlap_slowdown=1)
    startup_seconds, seconds_per_byte = all_reduce_estimate(domain_with(cluster))
    assert startup_seconds == pytest.approx(6e-3)
    assert seconds_per_byte == pytest.approx(1.5 / 0.1e9)


def test_mg_wfbp_merges_more_the_more_a_startup_costs() -> None:
    counts = [
        len({shard.group for choice in mg_wfbp(domain).choices for shard in choice.shards})
        for startup in (0.0, 5e-3, 1.0)
        for domain in [domain_with(cluster_of(backend="nccl", startup=startup))]
    ]
    assert counts[0] > counts[-1] == 1
    assert all(fewer <= more for more, fewer in pairwise(counts))


def test_mg_wfbp_gathers_sparse_gradients_and_merges_on_either_side() -> None:
    graph = chain_graph(((8, 4),) * 5, sparse=(2,))
    strategy = mg_wfbp(domain_of(graph, cluster_of(backend="nccl", startup=1.0)))
    verify(strategy, domain_of(graph, cluster_of(backend="nccl")))
    kinds = [(choice.shards[0].kind, choice.shards[0].group) for choice in strategy.choices]
    assert kinds[0] == kinds[1] == ("all_reduce", kinds[0][1])
    assert kinds[3] == kinds[4] == ("all_reduce", kinds[3][1])
    assert kinds[2][0] == "all_gather"
    assert len({group for _, group in kinds}) == 3


def test_after_backward_means_that_nothing_is_issued_before() -> None:
    domain = domain_with(cluster_of(2, 2, servers=2, backend="nccl"))
    for name, after in (
        ("BSP-PS", True),
        ("BSP-PS-ranks", True),
        ("WFBP-PS", False),
        ("BSP-A2A", True),
    ):
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
    with pytest.raises(InvalidInput, match="server_only") as refused:
        method_named("BSP-PS").build(domain)
    assert "BSP-PS-ranks" in str(refused.value.remedy)


def test_ranks_can_be_the_servers_that_are_told_after_backward() -> None:
    domain = domain_with(cluster_of(2, 2, backend="nccl"))
    strategy = method_named("BSP-PS-ranks").build(domain)
    verify(strategy, domain)
    shards = [shard for choice in strategy.choices for shard in choice.shards]
    owners = {shard.server for shard in shards if isinstance(shard, ParameterServer)}
    assert owners == set(range(4))


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


CHAIN = domain_of(chain_graph(((256, 256),) * 8), grid_cluster(4, 1, 1.0))
"""Backward takes 2 ms an operation; 256 KiB take 3 ms."""


def fused_by_horovod(fusion_bytes: int) -> list[int]:
    """The size of each message in variables, in gradient-ready order, which groups follow."""
    strategy = horovod(CHAIN, fusion_bytes)
    groups = [strategy.choices[index].shards[0].group for index in CHAIN.graph.gradient_order]
    sizes = [groups.count(group) for group in dict.fromkeys(groups)]
    assert [group for group in dict.fromkeys(groups) for _ in range(groups.count(group))] == groups
    return sizes


def test_a_cycle_takes_what_has_become_ready_during_the_one_before() -> None:
    sizes = fused_by_horovod(2**30)
    assert sizes[0] == 1, "the first cycle finds one gradient"
    assert sizes[1] == 2, "5 ms later two more are ready"
    assert sum(sizes) == 8


def test_a_buffer_holds_no_more_than_its_bytes() -> None:
    assert max(fused_by_horovod(2 * 256 * 256 * 4)) == 2
    assert fused_by_horovod(256 * 256 * 4) == [1] * 8
    assert fused_by_horovod(1) == [1] * 8, "a larger tensor goes alone"
