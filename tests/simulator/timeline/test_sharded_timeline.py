"""Iterations under `fully_shard`, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Backend, MessageCost, MessageKind
from autosync.codes import ENCODINGS, Op
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population, encode
from autosync.search.designs.known_designs import ddp
from autosync.search.designs.torch_engines import fsdp2, hsdp, zero2
from autosync.simulator.explanation import Explanation, explain
from autosync.simulator.fitting.cost_parameters import kinds_of_messages
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.sharded_strategy import sharded_by
from autosync.simulator.timeline.iteration_trace import predicted_iteration, simulate_trace
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator, play_one
from autosync.strategy import Encoding, Strategy
from autosync.torch_engine import FullyShard, Kept
from tests.domains import domain_of, grid_cluster, layered_graph

GRAPH = layered_graph(((1000, 250),) * 5)
"""Five variables of a megabyte: three blocks and the root's two. 5 ms forward, 10 ms backward."""
MEGABYTE_SECONDS = 1e6 * 8 / 1e9


def domain(backend: Backend, gbps: float = 1.0, nodes: int = 2, ranks_per_node: int = 1) -> Domain:
    """Links without latency; messages start at once."""
    kinds: tuple[MessageKind, ...] = ("all_reduce", "all_to_all", "all_gather")
    costs = tuple(MessageCost(kind, 0.0, 0.0) for kind in kinds)
    cluster = replace(grid_cluster(nodes, ranks_per_node, gbps), backend=backend, costs=costs)
    return domain_of(GRAPH, cluster)


def seconds(strategy: Strategy, on: Domain) -> float:
    return float(TimelineSimulator().predict(on, encode([strategy], on))[0])


def compiled(strategy: Strategy, on: Domain) -> tuple[PlanTable, Population]:
    population = encode([strategy], on)
    return compile_plans_fast(population, on), population


def test_in_host_memory_nothing_runs_beside_compute() -> None:
    on = domain("gloo")
    # Two ranks: a gather of n bytes takes n / 2 on the link. gloo reduces by an all-reduce: n.
    megabytes = {"root": 2, "blocks": 3}
    gathers, reduces = sum(megabytes.values()) / 2, sum(megabytes.values())
    again = megabytes["blocks"] / 2
    expected = 0.015 + (gathers + reduces) * MEGABYTE_SECONDS
    assert seconds(zero2(on), on) == pytest.approx(expected)
    assert seconds(fsdp2(on), on) == pytest.approx(expected + again * MEGABYTE_SECONDS)
    assert explain(on, zero2(on)).busiest_seconds == pytest.approx(expected - 0.015)


@pytest.mark.parametrize(("backend", "kind"), [("gloo", "all_reduce"), ("nccl", "all_to_all")])
def test_reductions_pay_for_what_moves_them(backend: Backend, kind: str) -> None:
    on = domain(backend)
    kinds = kinds_of_messages(*compiled(fsdp2(on), on), on.cluster)
    assert kinds == tuple(sorted((kind, "all_gather")))


def test_on_a_gpu_a_fast_link_hides_all_but_the_ends() -> None:
    on = domain("nccl", gbps=19.0)
    message = 0.5e6 * 8 / 19e9  # of a unit: half of a megabyte, either way
    # The root's gather opens the forward pass, and its reduce-scatter ends the backward pass.
    least = 0.015 + 2 * 2 * message
    # The first unit's second gather begins with backward, which has the root's own part to compute.
    assert seconds(zero2(on), on) == pytest.approx(least + message, rel=0.02)
    assert seconds(fsdp2(on), on) == pytest.approx(least + message, rel=0.02)


def test_a_slow_link_is_busy_all_the_time() -> None:
    on = domain("nccl", gbps=0.1)
    half = 0.5e6 * 8 / 0.1e9
    # From backward's first gradient on the link works without a pause, but for compute at the ends.
    for strategy, parts in ((zero2(on), 10), (fsdp2(on), 13)):
        took = seconds(strategy, on)
        assert parts * half < took < parts * half + 0.015


def test_hybrid_sharding_wins_where_nodes_are_far_apart() -> None:
    on = domain("nccl", gbps=0.5, nodes=2, ranks_per_node=4)
    assert seconds(hsdp(on), on) < seconds(fsdp2(on), on)


def test_messages_wait_for_compute_and_compute_for_messages() -> None:
    on = domain("nccl", gbps=2.0)
    strategy = fsdp2(on)
    plans, population = compiled(strategy, on)
    played = play_one(plans, population, on, 0)
    rows = slice(int(plans.first[0]), int(plans.first[1]))
    assert (played.arrived > played.issued).all()
    assert played.step_seconds == played.spans[-1][2]
    edges = [edge for _, start, stop in played.spans for edge in (start, stop)]
    assert edges == sorted(edges)
    busy = sum(
        stop - start for phase, start, stop in played.spans if phase in ("forward", "backward")
    )
    assert busy == pytest.approx(0.015)
    backward = sum(stop - start for phase, start, stop in played.spans if phase == "backward")
    assert backward == pytest.approx(0.010)
    # One communicator: no two of its messages are on the wire at once.
    order = np.argsort(played.on_wire)
    assert (played.on_wire[order][1:] >= played.arrived[order][:-1] - 1e-12).all()
    again = plans.before[rows] >= 0
    assert again.sum() == 3


def test_the_trace_is_the_same_iteration() -> None:
    on = domain("gloo", ranks_per_node=2)
    plans, population = compiled(hsdp(on), on)
    trace = simulate_trace(plans, population, on)
    assert trace.step_seconds == pytest.approx(seconds(hsdp(on), on))
    assert {each.rank for each in trace.compute} == {0, 1, 2, 3}
    one = predicted_iteration(plans, population, on)
    assert min(each.start_seconds for each in one.compute) == pytest.approx(0.0)
    assert len(one.messages) == plans.messages


def accounted_seconds(found: Explanation) -> float:
    own = found.compute_seconds + found.update_seconds + found.slowed_seconds
    return own + found.transfer_seconds + found.startup_seconds


def test_the_account_adds_up_and_tells_memory() -> None:
    on = domain("nccl")
    found = explain(on, fsdp2(on))
    assert accounted_seconds(found) == pytest.approx(found.step_seconds)
    assert found.compute_seconds == pytest.approx(0.015)
    assert found.transfer_seconds > 0
    assert max(found.peak_memory_bytes) < max(explain(on, ddp(on)).peak_memory_bytes)


def test_compute_beside_messages_is_slowed() -> None:
    on = domain("nccl", gbps=2.0)
    slowed = replace(on, cluster=replace(on.cluster, overlap_slowdown=0.5))
    assert seconds(fsdp2(slowed), slowed) > seconds(fsdp2(on), on)


BLOCKS = ("layers.0", "layers.1", "layers.2")


def test_units_that_keep_their_values_are_gathered_once() -> None:
    on = domain("gloo")
    half = MEGABYTE_SECONDS / 2  # a gather of one block
    shortest = seconds(sharded_by(on, FullyShard(BLOCKS, 2, False)), on)
    for kept in range(3):
        engine = FullyShard(BLOCKS, 2, (True,) * (3 - kept) + (False,) * kept)
        assert seconds(sharded_by(on, engine), on) == pytest.approx(shortest + (3 - kept) * half)


def test_merged_units_send_the_same_bytes_in_fewer_messages() -> None:
    on = domain("gloo")
    apart, merged = FullyShard(BLOCKS, 2), FullyShard((BLOCKS[:2], BLOCKS[2]), 2)
    assert seconds(sharded_by(on, merged), on) == pytest.approx(seconds(sharded_by(on, apart), on))
    counts = [compiled(sharded_by(on, each), on)[0].messages for each in (apart, merged)]
    assert counts == [4 + 4 + 3, 3 + 3 + 2]


def test_units_resharded_within_nodes_are_gathered_again_there() -> None:
    on = domain("nccl", gbps=2.0, ranks_per_node=2)
    within = sharded_by(on, FullyShard(BLOCKS, 4, 2))
    assert seconds(zero2(on), on) <= seconds(within, on) < seconds(fsdp2(on), on)
    plans, population = compiled(within, on)
    again, reduces = plans.before >= 0, plans.operation == Op.REDUCE_SCATTER
    assert {plans.teams[team] for team in plans.ranks[again].tolist()} == {((0, 1), (2, 3))}
    assert {plans.teams[team] for team in plans.ranks[~again].tolist()} == {((0, 1, 2, 3),)}
    # Their communicator is their own: they need not wait for sums between nodes.
    played = play_one(plans, population, on, 0)
    beside = [
        (played.issued[reduces] < arrived) & (played.arrived[reduces] > issued)
        for issued, arrived in zip(played.on_wire[again], played.arrived[again], strict=True)
    ]
    assert np.any(beside)


def test_deeper_prefetching_asks_earlier() -> None:
    """With one unit ahead a gather is asked for when the unit before computes, with two when the
    one before that does: a link of a fifth of a block's speed has more time."""
    on = domain("nccl", gbps=2.0)
    gathers = []
    for ahead in (1, 2, 3):
        strategy = sharded_by(on, FullyShard(BLOCKS, 2, True, ahead, ahead))
        plans, population = compiled(strategy, on)
        played = play_one(plans, population, on, 0)
        gathers.append(played.issued[plans.before >= 0])
        assert played.step_seconds <= seconds(fsdp2(on), on) + 1e-9
    assert (gathers[1] <= gathers[0]).all()
    assert (gathers[1] < gathers[0]).any()
    assert gathers[2].max() == 0.0  # all at once, when backward begins


def test_values_in_bf16_are_gathered_in_half_the_bytes() -> None:
    on = domain("gloo")
    engine = FullyShard(BLOCKS, 2)
    halved = sharded_by(on, replace(engine, param_dtype="bf16"))
    gathers = (5 + 3) / 2 * MEGABYTE_SECONDS  # all for forward, the blocks again for backward
    assert seconds(sharded_by(on, engine), on) - seconds(halved, on) == pytest.approx(gathers / 2)
    plans, _ = compiled(halved, on)
    assert set(plans.encoding[plans.carries_values].tolist()) == {ENCODINGS.index("bf16")}
    assert set(plans.encoding[~plans.carries_values].tolist()) == {0}


def test_gradients_in_bf16_send_half() -> None:
    on = domain("gloo")
    engine = FullyShard(BLOCKS, 2)
    exact = seconds(sharded_by(on, engine), on)
    assert exact - seconds(sharded_by(on, engine, Encoding("bf16")), on) == pytest.approx(
        2.5 * MEGABYTE_SECONDS
    )


def test_two_communicators_share_a_nic() -> None:
    """Shard groups of two hosts each: gathers, reduce-scatters and the all-reduces between groups
    all pass every NIC, which carries no more than its rate."""
    on = domain("nccl", gbps=0.1, nodes=4)
    gathers, again, reduces, between = 2.5, 1.5, 2.5, 2.5  # megabytes out of each NIC
    least = (gathers + again + reduces + between) * 10 * MEGABYTE_SECONDS
    took = seconds(sharded_by(on, FullyShard(BLOCKS, 2)), on)
    assert least * (1 - 1e-9) < took < least + 0.015


@pytest.mark.parametrize("keeps_values", [False, True])
def test_batches_before_the_last_send_what_is_not_kept(keeps_values: bool) -> None:
    on = domain("gloo")
    four = replace(on, accumulate=4)
    engine = FullyShard(BLOCKS, 2, not keeps_values)
    once = seconds(sharded_by(on, engine), on)
    forward, reduces = 2.5 * MEGABYTE_SECONDS, 5 * MEGABYTE_SECONDS
    again = 0.0 if keeps_values else 1.5 * MEGABYTE_SECONDS
    sent_of: dict[Kept, float] = {"": forward + again + reduces, "gradients": forward + again}
    sent_of["values"] = again
    for kept, sent in sent_of.items():
        strategy = sharded_by(on, replace(engine, kept_between_batches=kept))
        assert seconds(strategy, on) == pytest.approx(once)
        assert seconds(strategy, four) == pytest.approx(once + 3 * (0.015 + sent))
        told = explain(four, strategy)  # nothing runs beside compute, and one NIC carries all
        assert told.busiest_seconds == pytest.approx(once - 0.015 + 3 * sent)
    each, of_one = sharded_by(four, engine), explain(on, sharded_by(on, engine))
    assert explain(four, each).messages == 4 * of_one.messages
    assert explain(four, each).wire_bytes == 4 * of_one.wire_bytes
    assert explain(four, ddp(four)).messages == explain(on, ddp(on)).messages


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_account_of_several_batches_adds_up(backend: Backend) -> None:
    on = replace(domain(backend, ranks_per_node=2), accumulate=3)
    kept = sharded_by(on, FullyShard(BLOCKS, 2, kept_between_batches="values"))
    for strategy in (ddp(on), fsdp2(on), kept):
        found = explain(on, strategy)
        assert accounted_seconds(found) == pytest.approx(found.step_seconds)
        assert found.step_seconds == pytest.approx(seconds(strategy, on))
        assert found.compute_seconds == pytest.approx(3 * 0.015)
