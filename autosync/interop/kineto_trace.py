"""Calls of operators as a trace shows them, and those of a torch.profiler (Kineto) trace: how they
nest, and what their kernels take."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from autosync.errors import InvalidInput

MAX_EVENTS = 3_000_000
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
BACKWARD = "autograd::engine::evaluate_function"
"""How the calls begin that run autograd's nodes."""
STEP = "ProfilerStep#"
"""How the marks of `prof.step()` begin."""


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
    whole_backward: whether every autograd node that ran is in it.
    """

    steps: tuple[tuple[TracedCall, ...], ...]
    by_kernels: bool
    device: str = ""
    whole_backward: bool = True


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


def _is_time(value: object) -> TypeGuard[float]:
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


def _refused(source: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{source}: it {why}.",
        thing=source,
        value=why,
        remedy="Give what torch.profiler.profile(...).export_chrome_trace(path) writes.",
    )
