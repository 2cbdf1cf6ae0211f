"""Compute seconds of a graph's operations from a trace of its training: torch.profiler's (Kineto)
or a Chakra execution trace.

The k-th operation of a type in the graph is the k-th outermost call of that name in a step's
forward pass; the backward of a call is the autograd node of its sequence number. Where a device's
kernels were traced, their seconds count, else those of the calls on the CPU.
"""

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from gzip import GzipFile
from io import BytesIO
from statistics import median
from typing import Any

from autosync.cluster.devices import DEVICE_TYPES, device_type_of_gpu
from autosync.domain import Profile
from autosync.errors import InvalidInput, NotSupported
from autosync.graph import ModelGraph
from autosync.interop import refused_file
from autosync.interop.training_traces import (
    BACKWARD,
    TracedCall,
    TracedSteps,
    read_chakra,
    read_kineto,
)
from autosync.profiling import estimate_profile

_refused = partial(
    refused_file,
    remedy="Give what torch.profiler.profile(...).export_chrome_trace(path) writes (.json or "
    ".json.gz), or chakra_trace_link.",
)


PREFIX = "aten::"
MAX_TRACE_BYTES = 400_000_000
GZIP = b"\x1f\x8b"
"""How gzip's files begin; `export_chrome_trace` compresses to a name that ends in .gz."""


@dataclass(frozen=True, slots=True)
class TracedProfile:
    """profile: measured. estimated: types of operations that no step has as often as the graph
    does, and how many there are: they have a roofline's seconds."""

    profile: Profile
    estimated: dict[str, int]


def read_trace_profile(
    data: bytes, graph: ModelGraph, device_type: str | None, source: str = "trace.json"
) -> TracedProfile:
    """Medians over the profiled steps.

    device_type: what the trace was taken on, as device types are named here; None: as the trace
        says.

    Raises:
        InvalidInput: no such trace, one of another device, or one in which fewer than half of the
            graph's operations are found.
    """
    traced = read_trace(data, source)
    device_type = _device_type(traced, device_type, source)
    roofline = estimate_profile(graph, device_type, host_seconds=0.0)
    forward: list[list[float]] = [[] for _ in graph.operations]
    backward: list[list[float]] = [[] for _ in graph.operations]
    for step in traced.steps:
        for index, call, nodes in _matched(step, graph):
            forward[index].append(call.seconds(traced.by_kernels))
            backward[index].append(sum(node.seconds(traced.by_kernels) for node in nodes))
    missing = Counter(
        o.type for o, found in zip(graph.operations, forward, strict=True) if not found
    )
    operations = len(graph.operations)
    if (found := operations - sum(missing.values())) < operations / 2:
        lacking = ", ".join(f"{kind} ({count})" for kind, count in missing.most_common(4))
        raise InvalidInput(
            f"{source}: its steps have {found} of the {operations} operations of graph "
            f"{graph.name!r}, fewer than half; not as often as there: {lacking}.",
            thing=source,
            value=found,
            remedy="Trace the same model at the same batch size, in eager mode, with prof.step() "
            "after each step.",
        )
    profile = Profile(
        device=device_type,
        batch_size=graph.batch_size,
        forward_seconds=_medians(forward, roofline.forward_seconds),
        backward_seconds=_medians(backward, roofline.backward_seconds),
        update_seconds=roofline.update_seconds,
        source="measured",
        note=_note(traced, sum(missing.values()), operations),
    )
    return TracedProfile(profile, dict(missing))


def read_trace(data: bytes, source: str) -> TracedSteps:
    """The profiled steps of a trace; its content says what wrote it.

    Raises:
        InvalidInput: no such trace, or one that is too large.
    """
    trace = load_trace(data, source)
    return read_kineto(trace, source) if "traceEvents" in trace else read_chakra(trace, source)


def load_trace(data: bytes, source: str) -> dict[str, Any]:
    """The JSON of a trace, compressed or not, of bounded size.

    Raises:
        InvalidInput: it is no trace, or too large.
    """
    if data.startswith(GZIP):
        data = _decompressed(data, source)
    if len(data) > MAX_TRACE_BYTES:
        raise _refused(source, f"has more than {MAX_TRACE_BYTES} bytes")
    try:
        trace = json.loads(data)
    except (ValueError, RecursionError):
        raise _refused(source, "is no JSON") from None
    if not isinstance(trace, dict) or not trace.keys() & {"traceEvents", "nodes"}:
        raise _refused(source, "has neither 'traceEvents' (Kineto) nor 'nodes' (Chakra)")
    return trace


def _decompressed(data: bytes, source: str) -> bytes:
    """One byte more than may be read, at most, where there is more."""
    try:
        with GzipFile(fileobj=BytesIO(data)) as file:
            return file.read(MAX_TRACE_BYTES + 1)
    except EOFError:
        raise _refused(source, "is cut: its compressed bytes end too early") from None
    except (OSError, zlib.error) as error:
        raise _refused(source, f"is no gzip file: {error}") from None


def _device_type(traced: TracedSteps, stated: str | None, source: str) -> str:
    """The stated type, checked against what the trace says; without one, what it says."""
    try:
        named = device_type_of_gpu(traced.device) if traced.by_kernels and traced.device else None
    except NotSupported:
        named = None
    if stated is None:
        if traced.by_kernels and named is None:
            name = f" ({traced.device!r})" if traced.device else ""
            raise InvalidInput(
                f"{source}: the device type of its GPU{name} is not known.",
                thing=source,
                value=traced.device,
                remedy="State the type that it was taken on (--device).",
            )
        return named or "cpu"
    on_gpu = DEVICE_TYPES[stated].is_gpu if stated in DEVICE_TYPES else True
    variant = named is not None and stated.startswith(f"{named}-")  # a100-80gb says more than a100
    if on_gpu != traced.by_kernels or (named not in (None, stated) and not variant):
        taken = f"a GPU ({traced.device or 'of no name'})" if traced.by_kernels else "a CPU alone"
        raise InvalidInput(
            f"{source}: it was taken on {taken}, the stated device type is {stated!r}.",
            thing=source,
            value=traced.device or "cpu",
            remedy=f"State the type that it was taken on (--device {named or 'TYPE'})."
            if traced.by_kernels
            else "Trace on that device with ProfilerActivity.CUDA, or state --device cpu.",
        )
    return stated


def _medians(samples: list[list[float]], otherwise: Sequence[float]) -> tuple[float, ...]:
    pairs = zip(samples, otherwise, strict=True)
    return tuple(median(found) if found else estimate for found, estimate in pairs)


def _note(traced: TracedSteps, missing: int, operations: int) -> str:
    what = "kernels" if traced.by_kernels else "calls on the CPU"
    where = f" on {traced.device}" if traced.device else ""
    lacking = f"; {missing} of {operations} operations estimated" if missing else ""
    return f"trace of {len(traced.steps)} steps, {what}{where}{lacking}; update estimated"


def _matched(
    step: Sequence[TracedCall], graph: ModelGraph
) -> Iterator[tuple[int, TracedCall, list[TracedCall]]]:
    """Operation, its call, and the autograd nodes of its backward. A type that a step does not have
    as often as the graph is left out."""
    due: defaultdict[str, list[int]] = defaultdict(list)
    for index, operation in enumerate(graph.operations):
        due[PREFIX + operation.type].append(index)
    nodes: defaultdict[int, list[TracedCall]] = defaultdict(list)
    calls: defaultdict[str, list[TracedCall]] = defaultdict(list)
    makers: dict[int, TracedCall] = {}
    for root in step:
        if root.name.startswith(BACKWARD):
            if root.sequence is not None:
                nodes[root.sequence].append(root)
            continue
        for call in _outermost(root, due.keys()):
            calls[call.name].append(call)
            if call.sequence is not None:
                makers[call.sequence] = call  # the last with a number makes its node
    for name, indices in due.items():
        if len(indices) != len(calls[name]):
            continue
        for index, call in zip(indices, calls[name], strict=True):
            is_maker = call.sequence is not None and makers[call.sequence] is call
            yield index, call, nodes[call.sequence or 0] if is_maker else []


def _outermost(root: TracedCall, names: Set[str]) -> Iterator[TracedCall]:
    """Calls of these names that no other of them encloses, in the order they began."""
    waiting = [root]
    while waiting:
        call = waiting.pop()
        if call.name in names:
            yield call
        else:
            waiting += reversed(call.below)
