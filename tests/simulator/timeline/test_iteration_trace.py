"""Traces of iterations: predicted ones tell what the period tells, on every rank; measured ones are
compared with them."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from autosync.plan import plan_of
from autosync.population import encode
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.iteration_trace import (
    DealInterval,
    IterationTrace,
    chrome_trace,
    predicted_iteration,
    simulate_trace,
)
from autosync.simulator.timeline.trace_comparison import (
    differences,
    measured_iteration,
    queue_head_seconds,
)
from autosync.strategy import AllReduce, ParameterServer, Schedule
from autosync.trials.contract import (
    ComputeTimes,
    DealTimes,
    MeasuredTimeline,
    MessageTimes,
    RankTimeline,
)
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, random_strategy, strategy_of


def test_messages_and_waits_are_where_they_are_by_hand() -> None:
    graph = chain_graph(((250_000,),) * 2)
    cluster = cluster_of(backend="nccl", startup=1e-3, slowdowns=(1.0, 1.0, 2.0, 1.0))
    domain = domain_of(graph, cluster, 5e-3)
    strategy = strategy_of(domain, AllReduce, Schedule(overlap_forward=True))
    population = encode([strategy], domain)
    trace = simulate_trace(compile_plans_fast(population, domain), population, domain, 0, 1)
    issued = [message.issued_seconds for message in trace.messages]
    arrived = [message.arrived_seconds for message in trace.messages]
    # The slow rank's gradients come at 20 and 40 ms; each message takes 1 + 15 ms.
    assert issued == pytest.approx([0.020, 0.040])
    assert arrived == pytest.approx([0.036, 0.056])
    phases = [(i.phase, i.stop_seconds) for i in trace.compute if i.rank == 2]
    assert [phase for phase, _ in phases] == ["backward", "wait", "forward"]
    assert [stop for _, stop in phases] == pytest.approx([0.040, 0.056, 0.076])
    # A fast rank starts earlier and waits longer for the same message.
    fast = [i for i in trace.compute if i.rank == 0]
    assert [i.phase for i in fast] == ["backward", "wait", "forward"]
    assert fast[0].start_seconds == pytest.approx(0.066 - 0.076)
    assert fast[1].stop_seconds == pytest.approx(0.056)


def test_compute_is_drawn_as_long_as_it_takes_beside_messages() -> None:
    graph = chain_graph(((250_000,),) * 4)
    cluster = cluster_of(backend="nccl", slowdowns=(1.0, 0.5, 1.0, 1.0))
    domain = domain_of(graph, replace(cluster, overlap_slowdown=0.5), 10e-3)
    population = encode([strategy_of(domain, AllReduce)], domain)
    trace = simulate_trace(compile_plans_fast(population, domain), population, domain, 0, 1)
    slow = [(i.phase, i.stop_seconds) for i in trace.compute if i.rank == 0]
    # 15 ms messages at 20, 45 and 70 ms, in each of which backward does 10 ms of its work.
    assert [phase for phase, _ in slow] == ["backward", "wait", "forward"]
    assert [stop for _, stop in slow] == pytest.approx([0.095, 0.110, 0.150])
    # A rank twice as fast is done with forward 20 ms sooner; backward begins then, and nothing is
    # on the wire until it ends.
    fast = [i for i in trace.compute if i.rank == 1]
    assert fast[0].start_seconds == pytest.approx(-0.020)
    assert fast[0].stop_seconds == pytest.approx(0.020)


def test_compute_is_drawn_as_slow_as_it_is_while_messages_of_nccl_start_up() -> None:
    graph = chain_graph(((250_000,),) * 4)
    cluster = replace(cluster_of(backend="nccl", startup=10e-3), overlap_slowdown=0.5)
    domain = domain_of(graph, cluster, 10e-3)
    strategy = strategy_of(domain, lambda v: AllReduce(int(v == 3)))
    population = encode([strategy], domain)
    trace = simulate_trace(compile_plans_fast(population, domain), population, domain, 0, 1)
    # From 20 ms on the first message starts up for 10 ms and moves for 15: backward loses a third
    # of these. Behind it the other three take 10 + 45 ms.
    backward = 0.080 + 0.025 / 3
    found = [(i.phase, i.stop_seconds) for i in trace.compute if i.rank == 0]
    assert [phase for phase, _ in found] == ["backward", "wait", "forward"]
    assert [stop for _, stop in found] == pytest.approx(
        [backward, backward + 0.055, backward + 0.095]
    )
    assert trace.step_seconds == pytest.approx(backward + 0.095)


@pytest.mark.parametrize("slowdown", [0.0, 0.5])
def test_every_ranks_intervals_fill_its_period(slowdown: float) -> None:
    shapes = ((64, 32), (300, 7), (128, 64), (33,), (10, 128))
    cluster = cluster_of(2, 2, gbps=0.01, startup=1e-4, slowdowns=(1.0, 1.5))
    cluster = replace(cluster, overlap_slowdown=slowdown)
    domain = domain_of(chain_graph(shapes, (1,), factor_rows=4), cluster, 1e-3)
    rng = np.random.default_rng(2)
    population = encode([random_strategy(domain, rng) for _ in range(20)], domain)
    plans = compile_plans_fast(population, domain)
    for index in range(len(plans)):
        trace = simulate_trace(plans, population, domain, index, iterations=2)
        assert len(trace.messages) == 2 * (plans.first[index + 1] - plans.first[index])
        for message in trace.messages:
            assert message.issued_seconds <= message.on_wire_seconds <= message.arrived_seconds
        for rank in range(4):
            mine = [i for i in trace.compute if i.rank == rank]
            for one, other in pairwise(mine):
                assert other.start_seconds == pytest.approx(one.stop_seconds, abs=1e-9)
            length = mine[-1].stop_seconds - mine[0].start_seconds
            assert length == pytest.approx(2 * trace.step_seconds)


def test_a_message_names_those_who_take_part_in_it() -> None:
    domain = domain_of(chain_graph(((64, 32),)), cluster_of(2, 2, servers=1))
    strategy = strategy_of(domain, lambda v: ParameterServer(4, 0, hierarchical=True))
    population = encode([strategy], domain)
    trace = simulate_trace(compile_plans_fast(population, domain), population, domain, 0, 1)
    assert {message.operation: message.ranks for message in trace.messages} == {
        "reduce": (0, 1, 2, 3),
        "push": (0, 2, 4),
        "pull": (0, 2, 4),
        "broadcast": (0, 1, 2, 3),
    }


def test_chrome_trace_is_json_with_an_event_per_interval() -> None:
    domain = domain_of()
    population = encode([strategy_of(domain, AllReduce)], domain)
    trace = simulate_trace(compile_plans_fast(population, domain), population, domain)
    events = json.loads(chrome_trace(predicted=trace))["traceEvents"]
    drawn = [event for event in events if event["ph"] == "X"]
    assert len(drawn) == len(trace.messages) + len(trace.compute)
    assert all(event["dur"] > 0 for event in drawn)


GRAPH = chain_graph(((250_000,),) * 2)
CLUSTER = cluster_of(backend="nccl", startup=1e-3)
DOMAIN = domain_of(GRAPH, CLUSTER, 1e-2)
STRATEGY = strategy_of(DOMAIN, AllReduce, Schedule(overlap_forward=True))
POPULATION = encode([STRATEGY], DOMAIN)
PLANS = compile_plans_fast(POPULATION, DOMAIN)
PLAN = plan_of(PLANS, POPULATION, 0, DOMAIN)


def predicted() -> IterationTrace:
    return predicted_iteration(PLANS, POPULATION, DOMAIN)


def timeline(late_seconds: float = 0.0) -> MeasuredTimeline:
    """What a trial would record if the prediction were right, but that message 1 takes
    `late_seconds` longer; rank 1 issues everything 2 ms before the others."""
    trace = predicted()
    issued = tuple(message.issued_seconds for message in trace.messages)
    arrived = tuple(
        message.arrived_seconds + late_seconds * (message.message == 1)
        for message in trace.messages
    )
    compute = ComputeTimes(("forward", "backward"), (0.0, 0.02), (0.02, 0.06))
    ranks = []
    for rank in range(4):
        start = tuple(moment - 2e-3 * (rank == 1) for moment in issued)
        ranks.append(RankTimeline(compute, MessageTimes((0, 1), start, start, arrived)))
    return MeasuredTimeline(trace.step_seconds, "shared", tuple(ranks))


def test_the_predicted_iteration_begins_with_forward() -> None:
    """It waits 16 ms for the message that comes last and is used first, and takes 20 ms; in the
    40 ms of backward a gradient comes halfway and at the end; a message takes 1 + 15 ms."""
    trace = predicted()
    assert [m.issued_seconds for m in trace.messages] == pytest.approx([0.056, 0.076])
    assert [m.arrived_seconds for m in trace.messages] == pytest.approx([0.072, 0.092])
    mine = [each for each in trace.compute if each.rank == 0]
    assert [each.phase for each in mine] == ["wait", "forward", "backward", "wait", "forward"]
    assert mine[0].start_seconds == 0.0
    stops = [each.stop_seconds for each in mine]
    assert stops == pytest.approx([0.016, 0.036, 0.076, 0.092, 0.112])
    assert all(one.stop_seconds == other.start_seconds for one, other in pairwise(mine))


def test_a_right_prediction_differs_nowhere() -> None:
    measured = measured_iteration(timeline(), PLAN)
    assert measured.messages == tuple(
        replace(message, on_wire_seconds=message.issued_seconds) for message in predicted().messages
    )
    for found in differences(predicted(), measured):
        assert found.measured_seconds == pytest.approx(found.predicted_seconds)


def test_the_message_that_took_longer_stands_first() -> None:
    measured = measured_iteration(timeline(late_seconds=5e-3), PLAN)
    first, second = differences(predicted(), measured)
    assert (first.message, second.message) == (1, 0)
    assert first.operation == "all_reduce"
    assert first.measured_seconds - first.predicted_seconds == pytest.approx(5e-3)
    assert first.measured_arrived_seconds - first.predicted_arrived_seconds == pytest.approx(5e-3)
    assert second.measured_seconds == pytest.approx(second.predicted_seconds)


def test_a_channel_works_for_its_oldest_message() -> None:
    one, other = predicted().messages
    behind = replace(other, issued_seconds=one.issued_seconds + 1e-3)
    elsewhere = replace(behind, message=2, channel="value")
    trace = replace(predicted(), messages=(one, behind, elsewhere))
    assert queue_head_seconds(trace) == {
        0: one.issued_seconds,
        1: one.arrived_seconds,
        2: behind.issued_seconds,
    }


def test_ddp_has_compute_and_no_messages() -> None:
    of = timeline()
    silent = replace(of, ranks=tuple(replace(rank, messages=None) for rank in of.ranks))
    measured = measured_iteration(silent, PLAN)
    assert measured.messages == ()
    assert len(measured.compute) == 8
    assert differences(predicted(), measured) == ()


def dealing() -> MeasuredTimeline:
    """As `timeline`, with samples that are dealt; rank 3 comes a millisecond late."""
    of = timeline()
    ranks = [
        replace(
            each,
            deals=DealTimes(
                ("all_gather", "all_to_all"),
                (1e-3 * (rank == 3), 3e-3),
                (2e-3, 5e-3 + 1e-3 * (rank == 1)),
                (16, 100 * rank),
            ),
        )
        for rank, each in enumerate(of.ranks)
    ]
    return replace(of, ranks=tuple(ranks))


def test_deals_are_of_all_ranks() -> None:
    measured = measured_iteration(dealing(), PLAN)
    assert measured.deals == (
        DealInterval("all_gather", 64, 1e-3, 2e-3),
        DealInterval("all_to_all", 600, 3e-3, 6e-3),
    )
    assert measured.messages == measured_iteration(timeline(), PLAN).messages
    assert measured_iteration(timeline(), PLAN).deals == ()


def test_deals_have_a_thread_of_the_network_in_chromes_viewer() -> None:
    events = json.loads(chrome_trace(measured=measured_iteration(dealing(), PLAN)))["traceEvents"]
    (thread,) = [e for e in events if e.get("args", {}).get("name") == "deals of placed modules"]
    shown = [e for e in events if (e["pid"], e["tid"]) == (thread["pid"], thread["tid"])]
    assert [(e["name"], e["args"]["wire_bytes"]) for e in shown if e["ph"] == "X"] == [
        ("all_gather", 64),
        ("all_to_all", 600),
    ]


def test_both_lie_one_under_the_other_in_chromes_viewer() -> None:
    traces = {"predicted": predicted(), "measured": measured_iteration(timeline(), PLAN)}
    events = json.loads(chrome_trace(**traces))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(names) == 2 * 5
    assert {"predicted: rank 3", "predicted: network", "measured: network"} <= set(names.values())
    drawn = [event for event in events if event["ph"] == "X"]
    for name, trace in traces.items():
        mine = [event for event in drawn if names[event["pid"]].startswith(name)]
        assert len(mine) == len(trace.messages) + len(trace.compute)
        assert all(event["dur"] > 0 for event in mine)
