"""The trace tells the same story as the period, on every rank."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from autosync.population import encode
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.iteration_trace import chrome_trace, simulate_trace
from autosync.strategy import AllReduce, Schedule
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


def test_chrome_trace_is_json_with_an_event_per_interval() -> None:
    domain = domain_of()
    population = encode([strategy_of(domain, AllReduce)], domain)
    trace = simulate_trace(compile_plans_fast(population, domain), population, domain)
    events = json.loads(chrome_trace(predicted=trace))["traceEvents"]
    drawn = [event for event in events if event["ph"] == "X"]
    assert len(drawn) == len(trace.messages) + len(trace.compute)
    assert all(event["dur"] > 0 for event in drawn)
