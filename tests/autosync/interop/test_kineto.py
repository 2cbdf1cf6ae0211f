"""Traces of torch.profiler: of a real training on this machine, and by hand."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.importing import import_module
from autosync.interop import trace_profile
from autosync.interop.trace_profile import read_trace_profile

BATCH = 8


def example() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    module = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 4))
    return module, (torch.randn(BATCH, 64), torch.randint(0, 4, (BATCH,)))


def loss(outputs: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, y)


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    module, inputs = example()
    return import_module(module, inputs, loss, name="traced", batch_size=BATCH)


def test_a_training_that_was_traced(graph: ModelGraph, tmp_path: Path) -> None:
    module, inputs = example()
    steps = schedule(wait=0, warmup=1, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=steps, acc_events=True) as traced:
        for _ in range(4):
            module.zero_grad()
            loss(module(inputs[0]), *inputs).backward()
            traced.step()
    file = tmp_path / "trace.json.gz"
    traced.export_chrome_trace(str(file))
    assert file.read_bytes().startswith(b"\x1f\x8b")
    found = read_trace_profile(file.read_bytes(), graph, None)
    assert found.profile.device == "cpu"
    assert not found.estimated
    assert found.profile.source == "measured"
    assert "trace of 3 steps, calls on the CPU" in found.profile.note
    assert all(seconds > 0 for seconds in found.profile.forward_seconds)
    trained = [bool(operation.variables) for operation in graph.operations]
    pairs = zip(trained, found.profile.backward_seconds, strict=True)
    assert all(seconds > 0 for reads_variables, seconds in pairs if reads_variables)


def call(
    name: str, begin: float, length: float, kind: str = "cpu_op", **args: Any
) -> dict[str, Any]:
    named = {key.replace("_", " "): value for key, value in args.items()}
    event = {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": begin, "dur": length}
    return event | {"args": named}


def of_linear(steps: int) -> tuple[ModelGraph, bytes]:
    """One product on a GPU: 10 us of a kernel in forward, 25 us in backward."""
    module = nn.Linear(4, 2, bias=False)
    inputs = (torch.zeros(BATCH, 4),)
    graph = import_module(module, inputs, lambda y, x: y.sum(), name="linear", batch_size=BATCH)
    events: list[dict[str, Any]] = []
    for step in range(steps):
        at, ids = step * 1000.0, step * 10
        node = "autograd::engine::evaluate_function: MmBackward0"
        events += [
            call(f"ProfilerStep#{step}", at, 900, "user_annotation"),
            call("aten::linear", at + 1, 100, Sequence_number=ids),
            call("aten::mm", at + 2, 50, Sequence_number=ids, External_id=ids + 1),
            call("aten::sum", at + 110, 5, Sequence_number=ids + 1, External_id=ids + 2),
            call(node, at + 200, 80, Sequence_number=ids) | {"tid": 2},
            call("aten::mm", at + 210, 50, External_id=ids + 3) | {"tid": 2},
            call("gemm", at + 300, 10 + step, "kernel", External_id=ids + 1),
            call("gemm", at + 310, 25, "kernel", External_id=ids + 3),
        ]
    trace = {"traceEvents": events, "deviceProperties": [{"name": "Tesla V100"}]}
    return graph, json.dumps(trace).encode()


def test_kernels_count_where_there_are_any() -> None:
    graph, data = of_linear(3)
    found = read_trace_profile(data, graph, "v100")
    kinds = [operation.type for operation in graph.operations]
    product = kinds.index("mm")
    assert found.profile.forward_seconds[product] == pytest.approx(11e-6)
    assert found.profile.backward_seconds[product] == pytest.approx(25e-6)
    assert "kernels on Tesla V100" in found.profile.note
    assert not found.estimated


def test_types_that_are_not_found_are_listed(graph: ModelGraph) -> None:
    _, data = of_linear(1)
    with pytest.raises(InvalidInput, match=r"0 of the \d+ operations of graph 'traced'"):
        read_trace_profile(data, graph, "v100")
    linear, data = of_linear(2)
    without = [e for e in json.loads(data)["traceEvents"] if e["name"] != "aten::sum"]
    found = read_trace_profile(json.dumps({"traceEvents": without}).encode(), linear, "v100")
    assert found.estimated == {"sum": 1}


def test_a_trace_of_another_model_is_refused(graph: ModelGraph) -> None:
    """One operation of the graph's alone is in it: most of the profile would be an estimate."""
    events = [call("aten::gelu", 1, 5), call("aten::conv2d", 10, 50), call("aten::relu", 70, 5)]
    with pytest.raises(InvalidInput, match=r"have 1 of the \d+ operations.*fewer than half") as no:
        read_trace_profile(json.dumps({"traceEvents": events}).encode(), graph, "cpu")
    assert "addmm (2)" in no.value.message


def test_compressed_traces_are_read_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    linear, data = of_linear(2)
    plain = read_trace_profile(data, linear, "v100")
    half = len(data) // 2
    members = gzip.compress(data[:half]) + gzip.compress(data[half:])
    for packed in (gzip.compress(data), members, gzip.compress(data) + bytes(512)):
        assert read_trace_profile(packed, linear, "v100") == plain
    packed = gzip.compress(data)
    for bad, why in (
        (packed[:-12], "is cut"),
        (packed[:40] + bytes(8) + packed[48:], "is no gzip file"),
        (packed + b"more", "is no gzip file"),
        (gzip.compress(b"\0\1\2"), "is no JSON"),
    ):
        with pytest.raises(InvalidInput, match=why):
            read_trace_profile(bad, linear, "v100")
    monkeypatch.setattr(trace_profile, "MAX_TRACE_BYTES", len(data))
    assert read_trace_profile(packed, linear, "v100") == plain
    bombs = (gzip.compress(bytes(1_000_000)), packed + packed)
    for bomb in bombs:
        with pytest.raises(InvalidInput, match="has more than"):
            read_trace_profile(bomb, linear, "v100")


def test_the_device_of_a_trace_is_compared_with_the_stated_one() -> None:
    linear, data = of_linear(1)
    assert read_trace_profile(data, linear, None).profile.device == "v100"
    with pytest.raises(InvalidInput, match=r"a GPU \(Tesla V100\).*is 'a100'") as refused:
        read_trace_profile(data, linear, "a100")
    assert "--device v100" in refused.value.remedy
    with pytest.raises(InvalidInput, match="stated device type is 'cpu'"):
        read_trace_profile(data, linear, "cpu")
    of_a100 = data.replace(b"Tesla V100", b"NVIDIA A100-PG509-200")
    assert read_trace_profile(of_a100, linear, "a100-80gb").profile.device == "a100-80gb"
    unknown = data.replace(b"Tesla V100", b"NVIDIA R100")
    assert read_trace_profile(unknown, linear, "b300").profile.device == "b300"
    with pytest.raises(InvalidInput, match=r"of its GPU \('NVIDIA R100'\) is not known"):
        read_trace_profile(unknown, linear, None)
    on_cpu = [each for each in json.loads(data)["traceEvents"] if each["cat"] != "kernel"]
    with pytest.raises(InvalidInput, match="a CPU alone, the stated device type is 'v100'") as no:
        read_trace_profile(json.dumps({"traceEvents": on_cpu}).encode(), linear, "v100")
    assert "ProfilerActivity.CUDA" in no.value.remedy


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[]", "traceEvents"),
        (b'{"traceEvents": {}}', "traceEvents"),
        (b'{"traceEvents": [1, {"ph": "X"}, {"ph": "X", "name": 3, "ts": "a"}]}', "no operators"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": NaN, "dur": 1}]}',
            "no op",
        ),
    ],
)
def test_bad_traces_are_refused(data: bytes, why: str, graph: ModelGraph) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_trace_profile(data, graph, "v100")
    assert why in str(caught.value)
    assert caught.value.remedy
