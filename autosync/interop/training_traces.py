"""Traces of training steps: torch.profiler's (Kineto), and Chakra's linked JSON.

MLCommons' Chakra (github.com/mlcommons/chakra) links what torch.profiler's ExecutionTraceObserver
writes to the times of a Kineto trace (`chakra_trace_link`).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeGuard

from autosync.interop import refused_file

_refused = partial(
    refused_file, remedy="Give what torch.profiler.profile(...).export_chrome_trace(path) writes."
)
_no_chakra = partial(refused_file, remedy="Give the JSON that chakra_trace_link writes.")


MAX_EVENTS = 3_000_000
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
BACKWARD = "autograd::engine::evaluate_function"
"""How the calls begin that run autograd's nodes."""
STEP = "ProfilerStep#"
"""How the marks of `prof.step()` begin."""

CHAKRA_SCHEMAS = ("1.0.2", "1.0.3", "1.1.0", "1.1.1")
"""Of PyTorch's observer, as far as they are Chakra's 0.0.4 or 1.0.0."""
MAX_NODES = 1_000_000
USER_SCOPE = 7
"""torch's RecordScope of annotations: threads, steps, what `record_function` marks."""
LONGEST_US = 1e12


@dataclass(slots=True)
class TracedCall:
    """One call on the CPU. host_seconds: of the call, those below it included. sequence: of the
    autograd node that it makes, or runs; None without. own_kernel_seconds: of the kernels that it
    launches itself, not within a call below."""

    name: str
    host_seconds: float
    sequence: int | None = None
    own_kernel_seconds: float = 0.0
    below: "list[TracedCall]" = field(default_factory=list)

    def seconds(self, by_kernels: bool) -> float:
        """Of its kernels where the trace has any, else of the call."""
        if not by_kernels:
            return self.host_seconds
        waiting, total = [self], 0.0
        while waiting:
            call = waiting.pop()
            total += call.own_kernel_seconds
            waiting += call.below
        return total


@dataclass(frozen=True, slots=True)
class TracedSteps:
    """steps: the calls of each profiled step that no other call encloses, in the order they began.
    by_kernels: whether a device's kernels were traced. device: its name, where the trace says it.
    """

    steps: tuple[tuple[TracedCall, ...], ...]
    by_kernels: bool
    device: str = ""


@dataclass(slots=True)
class _Event:
    """A call with what it takes to nest it."""

    call: TracedCall
    thread: tuple[str, str]
    begin_us: float
    end_us: float
    external: int | None


def read_kineto(trace: Mapping[str, Any], source: str) -> TracedSteps:
    """The profiled steps of a trace as `export_chrome_trace` writes it; all of it where no step is
    marked.

    Raises:
        InvalidInput: no such trace, or one of too many events.
    """
    events = trace.get("traceEvents")
    if not isinstance(events, list) or len(events) > MAX_EVENTS:
        raise _refused(source, f"has no list of at most {MAX_EVENTS} events ('traceEvents')")
    calls, marks, kernels = _sorted_out(events)
    if not calls:
        raise _refused(source, "has no operators on the CPU")
    for event in calls:
        event.call.own_kernel_seconds = kernels.get(event.external, 0.0)
    roots = _nested(calls)
    starts = [begin for begin, _ in marks]
    steps: list[list[TracedCall]] = [[] for _ in marks] or [[]]
    for event in roots:
        step = bisect_right(starts, event.begin_us) - 1 if marks else 0
        if not marks or (step >= 0 and event.begin_us < marks[step][1]):
            steps[step].append(event.call)
    return TracedSteps(tuple(map(tuple, steps)), bool(kernels), _device(trace))


def _sorted_out(
    events: list[Any],
) -> tuple[list[_Event], list[tuple[float, float]], Mapping[int | None, float]]:
    """Calls, begin and end of the marked steps, and kernel seconds by external id."""
    calls: list[_Event] = []
    marks: dict[str, tuple[float, float]] = {}
    kernels: defaultdict[int | None, float] = defaultdict(float)
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        name, kind = event.get("name"), event.get("cat")
        begin, length = event.get("ts"), event.get("dur")
        given = event.get("args")
        args: dict[str, Any] = given if isinstance(given, dict) else {}
        if not (is_time(begin) and is_time(length) and isinstance(name, str)):
            continue
        external = args.get("External id")
        if kind in ON_DEVICE:
            if isinstance(external, int):
                kernels[external] += length / 1e6
        elif kind == "user_annotation" and name.startswith(STEP):
            marks.setdefault(name, (begin, begin + length))
        elif kind == "cpu_op":
            sequence = args.get("Sequence number")
            made = isinstance(sequence, int) and sequence >= 0
            calls.append(
                _Event(
                    TracedCall(name, length / 1e6, sequence if made else None),
                    thread=(str(event.get("pid")), str(event.get("tid"))),
                    begin_us=begin,
                    end_us=begin + length,
                    external=external if isinstance(external, int) else None,
                )
            )
    return calls, sorted(marks.values()), kernels


def is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and 0 <= value < 1e18


def _nested(calls: list[_Event]) -> list[_Event]:
    """Fills in `below`; returns the calls that none encloses, by their beginning."""
    open_calls: defaultdict[tuple[str, str], list[_Event]] = defaultdict(list)
    roots = []
    for event in sorted(calls, key=lambda each: (each.begin_us, -each.end_us)):
        stack = open_calls[event.thread]
        while stack and stack[-1].end_us < event.end_us:
            stack.pop()
        if stack:
            stack[-1].call.below.append(event.call)
        else:
            roots.append(event)
        stack.append(event)
    return roots


def _device(trace: Mapping[str, Any]) -> str:
    properties = trace.get("deviceProperties")
    first = properties[0] if isinstance(properties, list) and properties else None
    name = first.get("name") if isinstance(first, dict) else None
    return name[:80] if isinstance(name, str) else ""


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """parent: the node that called it. own_us: its own duration, without what it called.
    sequence: of the autograd node that it makes, or runs; None without."""

    id: int
    name: str
    parent: int
    own_us: float
    sequence: int | None
    on_device: bool
    is_annotation: bool


def read_chakra(trace: Mapping[str, Any], source: str) -> TracedSteps:
    """The profiled steps of a linked trace; all of it where no step is marked.

    Raises:
        InvalidInput: it is of another schema, too large, or has no times.
    """
    schema = trace.get("schema")
    known = isinstance(schema, str) and "-chakra." in schema and schema.startswith(CHAKRA_SCHEMAS)
    if not known:
        raise _no_chakra(
            source, f"is of schema {str(schema)[:40]!r}, not {', '.join(CHAKRA_SCHEMAS)}"
        )
    nodes = trace.get("nodes")
    if not isinstance(nodes, list) or len(nodes) > MAX_NODES:
        raise _no_chakra(source, f"has no list of at most {MAX_NODES} nodes")
    return _chakra_steps([node for each in nodes if (node := _of_json(each)) is not None], source)


def _of_json(given: Any) -> ChakraNode | None:
    """None where it is no node."""
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return None
    identity, parent, listed = given.get("id"), given.get("ctrl_deps"), given.get("attrs")
    if type(identity) is not int:
        return None
    attributes = {
        each.get("name"): each.get("value")
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    }
    sequence = attributes.get("seq_id")
    on_device = given.get("cat") is not None
    own = given.get("inclusive_dur" if on_device else "exclusive_dur")
    return ChakraNode(
        id=identity,
        name=given["name"],
        parent=parent if type(parent) is int else identity,
        own_us=_microseconds(own),
        sequence=sequence if type(sequence) is int and sequence >= 0 else None,
        on_device=on_device,
        is_annotation=attributes.get("scope") == USER_SCOPE,
    )


def _microseconds(value: object) -> float:
    """0 where there is none: the device's trace does not have every call of the host's."""
    return float(value) if isinstance(value, int | float) and 0 <= value <= LONGEST_US else 0.0


def _chakra_steps(nodes: Sequence[ChakraNode], source: str) -> TracedSteps:
    if not any(node.own_us for node in nodes):
        raise _no_chakra(
            source,
            "has no durations",
            remedy="An observer's trace alone has none: link it to the profiler's with "
            "chakra_trace_link, or give the profiler's.",
        )
    roots = _root_calls(nodes, source)
    if not roots:
        raise _no_chakra(source, "has no operators on the CPU")
    marks = sorted(node.id for node in nodes if node.is_annotation and node.name.startswith(STEP))
    steps: list[list[TracedCall]] = [[] for _ in marks] or [[]]
    for identity, call in sorted(roots.items()):
        step = bisect_right(marks, identity) - 1 if marks else 0
        if step >= 0:
            steps[step].append(call)
    by_kernels = any(node.on_device and node.own_us for node in nodes)
    return TracedSteps(tuple(map(tuple, steps)), by_kernels)


def _root_calls(nodes: Sequence[ChakraNode], source: str) -> dict[int, TracedCall]:
    """By id, the calls that no other encloses; ids count in the order in which calls begin."""
    ordered = _callers_first(nodes, source)
    roots: dict[int, TracedCall] = {}
    inside: dict[int, TracedCall | None] = {}
    pairs: list[tuple[TracedCall, TracedCall]] = []
    for node in ordered:
        caller = inside.get(node.parent)
        seconds = node.own_us / 1e6
        if node.on_device:
            if caller is not None:
                caller.own_kernel_seconds += seconds
        elif node.is_annotation:
            inside[node.id] = caller
        else:
            call = inside[node.id] = TracedCall(node.name, seconds, node.sequence)
            if caller is None:
                roots[node.id] = call
            else:
                caller.below.append(call)
                pairs.append((caller, call))
    for caller, call in reversed(pairs):
        caller.host_seconds += call.host_seconds
        if caller.name.startswith(BACKWARD) and caller.sequence is None:
            caller.sequence = call.sequence  # the node that it runs states it
    return roots


def _callers_first(nodes: Sequence[ChakraNode], source: str) -> list[ChakraNode]:
    by_id = {node.id: node for node in nodes}
    if len(by_id) < len(nodes):
        raise _no_chakra(source, "gives two nodes one id")
    called: defaultdict[int, list[ChakraNode]] = defaultdict(list)
    ordered: list[ChakraNode] = []
    for node in sorted(nodes, key=lambda each: each.id):
        if node.parent == node.id or node.parent not in by_id:
            ordered.append(node)
        else:
            called[node.parent].append(node)
    for node in ordered:  # grows meanwhile
        ordered += called[node.id]
    if len(ordered) < len(nodes):
        raise _no_chakra(source, "has nodes that call each other in a circle")
    return ordered
