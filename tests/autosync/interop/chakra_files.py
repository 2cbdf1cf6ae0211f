"""Chakra traces: what chakra_trace_link writes of a traced step."""

from typing import Any

SCHEMA = "1.1.1-chakra.0.0.4"
BACKWARD = "MmBackward0"
USER_SCOPE = 7
VALUES: dict[str, list[Any]] = {"values": [], "shapes": [], "types": []}


def node(
    identity: int, name: str, parent: int, sequence: int = -1, scope: int = 0, **times: Any
) -> dict[str, Any]:
    """As the observer writes it, and `times` as the linker adds them."""
    attributes = {"rf_id": identity, "fw_parent": 0, "seq_id": sequence, "scope": scope, "tid": 1}
    listed = [{"name": key, "type": "uint64", "value": value} for key, value in attributes.items()]
    listed.append({"name": "op_schema", "type": "string", "value": ""})
    described = {"id": identity, "name": name, "ctrl_deps": parent}
    return {**described, "inputs": VALUES, "outputs": VALUES, "attrs": listed, **times}


def kernel(identity: int, parent: int, microseconds: float) -> dict[str, Any]:
    times: dict[str, Any] = {"inclusive_dur": microseconds, "exclusive_dur": microseconds}
    return {**node(identity, "gemm", parent, **times), "cat": "kernel", "stream": 7}


def linear_step(steps: int) -> dict[str, Any]:
    """Of a product on a GPU: kernels of 10 us (and one more each step) in forward, 25 in backward;
    backward runs on a thread of its own."""
    nodes = [
        node(1, "[pytorch|profiler|execution_trace|process]", 1, scope=USER_SCOPE),
        node(2, "[pytorch|profiler|execution_trace|thread]", 1, scope=USER_SCOPE),
        node(3, "[pytorch|profiler|execution_trace|thread]", 1, scope=USER_SCOPE),
    ]
    for step in range(steps):
        at, sequence = 10 + 100 * step, 10 * step
        took: dict[str, Any] = {"inclusive_dur": 50.0, "exclusive_dur": 20.5}
        nodes += [
            node(at, f"ProfilerStep#{step}", 2, scope=USER_SCOPE),
            node(at + 1, "aten::linear", at, sequence, **took),
            node(at + 2, "aten::mm", at + 1, sequence, inclusive_dur=29.5, exclusive_dur=29.5),
            kernel(at + 3, at + 2, 10.0 + step),
            node(at + 4, "aten::sum", at, sequence + 1, inclusive_dur=5.0, exclusive_dur=5.0),
            node(at + 5, f"autograd::engine::evaluate_function: {BACKWARD}", 3, **took),
            node(at + 6, BACKWARD, at + 5, sequence, scope=1),
            node(at + 7, "aten::mm", at + 6, inclusive_dur=29.5, exclusive_dur=29.5),
            kernel(at + 8, at + 7, 25.0),
        ]
    times = {"pid": 1, "time": "2026-01-31 12:00:00", "start_ts": 1, "finish_ts": 2}
    return {"schema": SCHEMA, **times, "nodes": nodes}


def linked(host: dict[str, Any], device: dict[str, Any]) -> dict[str, Any]:
    """An observer's trace with the times of the profiler's, as chakra_trace_link joins the two: by
    the id of the recorded function. Kernels are left out."""
    spans: dict[int, tuple[Any, float, float]] = {}
    for event in device["traceEvents"]:
        identity = event.get("args", {}).get("Record function id")
        if identity and event.get("ph") == "X":
            spans[identity] = (event["tid"], event["ts"], event["ts"] + event["dur"])
    nodes = []
    for each in host["nodes"]:
        identity = next(a["value"] for a in each["attrs"] if a["name"] == "rf_id")
        nodes.append({**each, **_times(identity, spans)})
    return {**host, "finish_ts": 0, "nodes": nodes}


def _times(identity: int, spans: dict[int, tuple[Any, float, float]]) -> dict[str, float]:
    if identity not in spans:
        return {}
    thread, begin, end = spans[identity]
    inside = [(b, e) for t, b, e in spans.values() if t == thread and begin <= b and e <= end]
    inside.remove((begin, end))
    direct = [
        (b, e)
        for b, e in inside
        if not any((x, y) != (b, e) and x <= b and e <= y for x, y in inside)
    ]
    own = end - begin - sum(e - b for b, e in direct)
    return {"ts": begin, "inclusive_dur": end - begin, "exclusive_dur": max(own, 0.0)}
