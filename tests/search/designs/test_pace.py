from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from autosync.domain import Domain
from autosync.models import bundled
from autosync.plan import compile_plans, plan_of
from autosync.plan.plan_document import Plan
from autosync.population import encode
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs import pace
from autosync.search.designs.list_schedule import list_order, list_schedule
from autosync.search.designs.pace import max_min_partitions
from autosync.search.designs.wire_estimates import ready_seconds, tail_seconds, wire_seconds
from autosync.simulator.preemptive_schedule import longest_tail_first
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import AllReduce, Strategy
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.worked_examples import cluster_of

RING = AllReduce(0)
BIG_LAST = domain_of(
    chain_graph(((300, 1000), (1000, 1000), (1000, 4000))), grid_cluster(4, 1, 8.0), 5e-3
)
"""The largest gradient is ready first and used last."""


def plan(strategy: Strategy, domain: Domain) -> Plan:
    verify(strategy, domain)
    population = encode([strategy], domain)
    return plan_of(compile_plans(population, domain), population, 0, domain)


def sent(strategy: Strategy, domain: Domain) -> list[list[int]]:
    """The variables of each message, in the order of sending."""
    made = plan(strategy, domain)
    return [
        [made.shards[piece.shard].variable for piece in made.buckets[message.bucket]]
        for message in made.messages
    ]


def test_a_large_gradient_is_interrupted_by_those_used_before_it() -> None:
    strategy = pace.pace_unfused(BIG_LAST)
    assert sent(strategy, BIG_LAST) == [[2], [1], [2], [0], [2]]
    lengths = strategy.choices[2].partition.lengths
    assert len(set(lengths)) > 1, "slices are unequal"
    ready, needs = ready_seconds(BIG_LAST), wire_seconds(BIG_LAST, RING, np.array([16e6]))[0]
    share = (ready[1] - ready[2]) / needs
    assert lengths[0] / 4e6 == pytest.approx(share, abs=1e-3), "the first ends as v1 gets ready"


def test_the_fusion_is_the_best_number_of_balanced_parts() -> None:
    shapes = ((64, 32), (700, 90), (64,), (128, 640), (128,), (40, 1280), (10,))
    domain = domain_of(chain_graph(shapes), grid_cluster(4, 1, 0.2), 2e-3)
    order = list(domain.graph.gradient_order)
    sizes = domain.variables.size_bytes[order].astype(float)
    ready, tails = ready_seconds(domain)[order], tail_seconds(domain)[order]

    def ends(begins: np.ndarray) -> float:
        needs = wire_seconds(domain, RING, np.add.reduceat(sizes, begins))
        fused_tails = np.maximum.reduceat(tails, begins)
        return longest_tail_first(np.maximum.reduceat(ready, begins), needs, fused_tails)

    best = min(max_min_partitions(sizes), key=ends)
    fused = pace.fused_operators(domain, RING, pace.all_reduce_operators(domain, {}))
    assert [len(part) for part in fused] == [len(p) for p in np.split(order, best[1:])]
    assert [index for part in fused for index in part] == order
    assert 1 < len(fused) < len(order), "neither everything nor nothing is fused"


def test_every_element_is_sent_once_and_sparse_gradients_whole() -> None:
    shapes = ((3000, 64), (64,), (512, 640), (128,), (1000, 512))
    domain = domain_of(chain_graph(shapes, (0,), 2), grid_cluster(2, 2), 1e-3)
    for build in (pace.pace, pace.pace_unfused, pace.pace_hierarchical):
        strategy = build(domain)
        verify(strategy, domain)
        assert [shard.kind for shard in strategy.choices[0].shards] == ["all_gather"]
        assert strategy.schedule.order == "explicit"
        assert strategy.schedule.overlap_forward


def test_factors_have_their_place_in_the_schedule_and_are_whole() -> None:
    domain = domain_of(chain_graph(((512, 640), (64,), (800, 400), (64,)), factor_rows=4))
    strategy = pace.pace_factors(domain)
    verify(strategy, domain)
    kinds = [[shard.kind for shard in choice.shards] for choice in strategy.choices]
    assert kinds[0] == kinds[2] == ["factors"]
    assert {kind for of in (kinds[1], kinds[3]) for kind in of} == {"all_reduce"}


def test_on_nccl_the_stages_of_a_hierarchy_follow_each_other() -> None:
    domain = domain_of(cluster=cluster_of(2, 2, gbps=0.8, intra_gbps=0.8, backend="nccl"))
    # At 100 MB/s: reduced in each node, all-reduced between the two, and sent back.
    each = wire_seconds(domain, AllReduce(0, "hierarchical"), np.array([1e6]))
    assert each == pytest.approx([0.010 + 0.010 + 0.010])


def test_types_are_never_fused() -> None:
    graph = chain_graph(((64, 64),) * 6)
    halves = tuple(
        replace(variable, dtype="bfloat16" if i % 2 else "float32")
        for i, variable in enumerate(graph.variables)
    )
    domain = domain_of(replace(graph, variables=halves))
    verify(pace.pace(domain), domain)


def test_gradients_of_one_operation_are_one_operator() -> None:
    graph = chain_graph(((64, 64), (64,), (64, 64), (64,)))
    domain = domain_of(replace(graph, gradient_after=(0, 0, 2, 2)))
    assert pace.all_reduce_operators(domain, {}) == [(3, 2), (1, 0)]


@pytest.mark.parametrize("model", ["vgg16", "transformer"])
def test_published_sizes_are_scheduled_at_once(model: str) -> None:
    """The timeline agrees that the optimal schedule beats sending in order of readiness."""
    graph = bundled(model)
    domain = Domain(graph, grid_cluster(4, 1, 23.9), profile_from_step_seconds(graph, 0.2, "cpu"))
    fused = pace.pace(domain)
    verify(fused, domain)
    in_order = replace(fused, schedule=replace(fused.schedule, order="fifo", positions=()))
    seconds = TimelineSimulator().predict(domain, encode([fused, in_order], domain))
    assert seconds[0] < seconds[1]


def test_list_scheduling_takes_the_highest_rank_of_those_ready() -> None:
    ready = {0: 0.0, 1: 1.0, 2: 1.0, 3: 9.0}
    seconds = {0: 2.0, 1: 2.0, 2: 2.0, 3: 1.0}
    rank = {0: 1.0, 1: 5.0, 2: 7.0, 3: 99.0}
    assert list_order(ready, seconds, rank) == [0, 2, 1, 3]


def test_a_message_of_a_list_schedule_is_whole() -> None:
    assert sent(list_schedule(BIG_LAST), BIG_LAST) == [[2], [1, 0]]


def test_no_partition_is_left_out_that_could_be_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = bundled("resnet50")
    domain = domain_of(graph, operation_seconds=1e-4)
    chain = pace.all_reduce_operators(domain, {})
    fused = pace.fused_operators(domain, RING, chain)
    scheduled: list[int] = []

    def never(ready: object, needs: object, tails: object) -> float:
        scheduled.append(1)
        return -np.inf

    monkeypatch.setattr(pace, "least_end", never)
    assert pace.fused_operators(domain, RING, chain) == fused
    assert len(scheduled) == len(chain)


def largest_smallest(sizes: list[float], parts: int) -> float:
    """Of every partition of the chain."""
    return max(
        min(sum(sizes[a:b]) for a, b in zip((0, *cut), (*cut, len(sizes)), strict=True))
        for cut in combinations(range(1, len(sizes)), parts - 1)
    )


def test_partitions_are_the_best_of_all() -> None:
    rng = np.random.default_rng(2)
    for _ in range(40):
        sizes = rng.integers(1, 60, rng.integers(1, 9)).astype(float)
        partitions = max_min_partitions(sizes)
        assert len(partitions) == len(sizes)
        for parts, begins in enumerate(partitions, 1):
            assert len(begins) == parts
            assert begins[0] == 0
            assert (np.diff(begins) > 0).all()
            smallest = np.add.reduceat(sizes, begins).min()
            assert smallest == largest_smallest(sizes.tolist(), parts)


def test_of_equal_partitions_the_first_part_is_shortest() -> None:
    assert max_min_partitions(np.array([2.0, 1.0, 1.0, 2.0]))[1].tolist() == [0, 2]
    assert max_min_partitions(np.array([5.0, 1.0, 1.0]))[1].tolist() == [0, 1]


def test_the_longest_chain_of_a_bundled_model_is_partitioned() -> None:
    sizes = np.random.default_rng(0).integers(1, 10**7, 400).astype(float)
    partitions = max_min_partitions(sizes)
    assert [len(begins) for begins in partitions] == list(range(1, 401))
    assert partitions[-1].tolist() == list(range(400))
