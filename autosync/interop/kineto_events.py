"""Events of a torch.profiler (Kineto) trace: how operators nest, and what their kernels take."""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from autosync.errors import InvalidInput

MAX_TRACE_BYTES = 400_000_000
MAX_EVENTS = 3_000_000
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
BACKWARD = "autograd::engine::evaluate_function"
STEP = "ProfilerStep#"


@dataclass(slots=True)
class TracedCall:
    """One call on the CPU. sequence: of the autograd node that it makes, or runs; None without.
    own_kernel_seconds: of the kernels that it launches itself, not within a call below."""

    name: str
    thread: tuple[str, str]
    begin_us: float
    end_us: float
    external: int | None = None
    sequence: int | None = None
    own_kernel_seconds: float = 0.0
    below: "list[TracedCall]" = field(default_factory=list)

    def seconds(self, by_kernels: bool) -> float:
        """Of its kernels where the trace has any, else of the call."""
        if not by_kernels:
            return (self.end_us - self.begin_us) / 1e6
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
    device: str


def read_trace(data: bytes, source: str) -> TracedSteps:
    """The profiled steps of a trace as `export_chrome_trace` writes it; all of it where no step is
    marked.

    Raises:
        InvalidInput: no such trace, or one that is too large.
    """
    if len(data) > MAX_TRACE_BYTES:
        raise _refused(source, f"has {len(data)} bytes, more than {MAX_TRACE_BYTES}")
    try:
        trace = json.loads(data)
    except (ValueError, RecursionError):
        raise _refused(source, "is no JSON") from None
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list) or len(events) > MAX_EVENTS:
        raise _refused(source, f"has no list of at most {MAX_EVENTS} events ('traceEvents')")
    calls, marks, kernels = _sorted_out(events)
    if not calls:
        raise _refused(source, "has no operators on the CPU")
    for call in calls:
        call.own_kernel_seconds = kernels.get(call.external, 0.0)
    roots = _nested(calls)
    starts = [begin for begin, _ in marks]
    steps: list[list[TracedCall]] = [[] for _ in marks] or [[]]
    for call in roots:
        step = bisect_right(starts, call.begin_us) - 1 if marks else 0
        if not marks or (step >= 0 and call.begin_us < marks[step][1]):
            steps[step].append(call)
    return TracedSteps(tuple(map(tuple, steps)), bool(kernels), _device(trace))


def _sorted_out(
    events: list[Any],
) -> tuple[list[TracedCall], list[tuple[float, float]], Mapping[int | None, float]]:
    """Calls, begin and end of the marked steps, and kernel seconds by external id."""
    calls: list[TracedCall] = []
    marks: dict[str, tuple[float, float]] = {}
    kernels: defaultdict[int | None, float] = defaultdict(float)
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        name, kind = event.get("name"), event.get("cat")
        begin, length = event.get("ts"), event.get("dur")
        given = event.get("args")
        args: dict[str, Any] = given if isinstance(given, dict) else {}
        if not (_is_time(begin) and _is_time(length) and isinstance(name, str)):
            continue
        external = args.get("External id")
        if kind in ON_DEVICE:
            if isinstance(external, int):
                kernels[external] += length / 1e6
        elif kind == "user_annotation" and name.startswith(STEP):
            marks.setdefault(name, (begin, begin + length))
        elif kind == "cpu_op":
            sequence = args.get("Sequence number")
            calls.append(
                TracedCall(
                    name=name,
                    thread=(str(event.get("pid")), str(event.get("tid"))),
                    begin_us=begin,
                    end_us=begin + length,
                    external=external if isinstance(external, int) else None,
                    sequence=sequence if isinstance(sequence, int) and sequence >= 0 else None,
                )
            )
    return calls, sorted(marks.values()), kernels


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and 0 <= value < 1e18


def _nested(calls: list[TracedCall]) -> list[TracedCall]:
    """Fills in `below`; returns the calls that none encloses, by their beginning."""
    open_calls: defaultdict[tuple[str, str], list[TracedCall]] = defaultdict(list)
    roots = []
    for call in sorted(calls, key=lambda each: (each.begin_us, -each.end_us)):
        stack = open_calls[call.thread]
        while stack and stack[-1].end_us < call.end_us:
            stack.pop()
        if stack:
            stack[-1].below.append(call)
        else:
            roots.append(call)
        stack.append(call)
    return roots


def _device(trace: Mapping[str, Any]) -> str:
    properties = trace.get("deviceProperties")
    first = properties[0] if isinstance(properties, list) and properties else None
    name = first.get("name") if isinstance(first, dict) else None
    return name[:80] if isinstance(name, str) else ""


def _refused(source: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{source}: it {why}.",
        thing=source,
        value=why,
        remedy="Give what torch.profiler.profile(...).export_chrome_trace(path) writes.",
    )
