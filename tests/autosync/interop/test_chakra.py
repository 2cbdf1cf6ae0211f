"""Chakra traces: of a real training on this machine, and by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.importing import import_module
from autosync.interop.trace_profile import read_trace_profile
from tests.autosync.interop.chakra_files import linear_step, linked
from tests.autosync.interop.test_kineto import BATCH, example, loss, of_linear


@pytest.fixture(scope="module")
def linear() -> ModelGraph:
    return of_linear(1)[0]


def test_kernels_count_where_there_are_any(linear: ModelGraph) -> None:
    found = read_trace_profile(json.dumps(linear_step(3)).encode(), linear, "v100")
    product = [operation.type for operation in linear.operations].index("mm")
    assert found.profile.forward_seconds[product] == pytest.approx(11e-6)
    assert found.profile.backward_seconds[product] == pytest.approx(25e-6)
    assert not found.estimated
    assert "trace of 3 steps, kernels" in found.profile.note


def test_else_the_calls_do(linear: ModelGraph) -> None:
    """A call's seconds hold those of the calls in it."""
    trace = linear_step(2)
    trace["nodes"] = [node for node in trace["nodes"] if "cat" not in node]
    found = read_trace_profile(json.dumps(trace).encode(), linear, None).profile
    product = [operation.type for operation in linear.operations].index("mm")
    assert found.forward_seconds[product] == pytest.approx(29.5e-6)
    assert found.backward_seconds[product] == pytest.approx(50e-6)


def test_a_training_that_was_traced(tmp_path: Path) -> None:
    """The observer's file and the profiler's, joined, say what the profiler's alone does."""
    module, inputs = example()
    graph = import_module(module, inputs, loss, name="traced", batch_size=BATCH)
    host, device = tmp_path / "host.json", tmp_path / "device.json"
    observer = ExecutionTraceObserver().register_callback(str(host))
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
        acc_events=True,
        execution_trace_observer=observer,
    ) as traced:
        for _ in range(3):
            module.zero_grad()
            loss(module(inputs[0]), *inputs).backward()
            traced.step()
    traced.export_chrome_trace(str(device))
    trace = linked(json.loads(host.read_bytes()), json.loads(device.read_bytes()))
    theirs = read_trace_profile(device.read_bytes(), graph, "cpu")
    ours = read_trace_profile(json.dumps(trace).encode(), graph, "cpu")
    assert not ours.estimated
    assert ours.profile.forward_seconds == pytest.approx(theirs.profile.forward_seconds, abs=1e-7)
    assert ours.profile.backward_seconds == pytest.approx(theirs.profile.backward_seconds, abs=1e-7)


TIMES = ("exclusive_dur", "inclusive_dur")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda nodes: {"schema": "2.0.0"}, "is of schema '2.0.0'"),
        (
            lambda nodes: {"nodes": [{k: n[k] for k in n if k not in TIMES} for n in nodes]},
            "has no durations.*chakra_trace_link",
        ),
        (lambda nodes: {"nodes": {}}, "has no list of at most"),
        (lambda nodes: nodes[4].update(ctrl_deps=nodes[5]["id"]), "call each other in a circle"),
        (lambda nodes: nodes[4].update(id=nodes[5]["id"]), "gives two nodes one id"),
        (lambda nodes: {"nodes": [n for n in nodes if "cat" in n]}, "has no operators on the CPU"),
    ],
)
def test_bad_traces_are_refused(change: Any, why: str, linear: ModelGraph) -> None:
    """change: what other fields a trace has, or changes its nodes."""
    trace = linear_step(1)
    trace |= change(trace["nodes"]) or {}
    with pytest.raises(InvalidInput, match=why):
        read_trace_profile(json.dumps(trace).encode(), linear, "v100", "linked.json")
