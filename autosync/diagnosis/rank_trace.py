"""One rank's profiled steps, reduced to intervals: compute, collectives, input.

A trace of torch.profiler (Kineto) has calls on the CPU and, where a GPU was recorded, kernels. With
kernels, compute is the time in which a kernel other than NCCL's runs, and a collective lasts as
long as its kernel. Without, compute is the time within operators, and a collective lasts from the
call that issues it to the end of gloo's own mark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.interop import refused_file
from autosync.interop.training_traces import MAX_EVENTS, ON_DEVICE, STEP, is_time

F64 = NDArray[np.float64]

_refused = partial(
    refused_file, remedy="Give what torch.profiler.profile(...).export_chrome_trace(path) writes."
)

INPUT_MARK = "autosync: input"
"""How a diagnosis marks that a batch is fetched."""
INPUT_MARKS = ("enumerate(DataLoader)", INPUT_MARK)
"""That, and how torch's DataLoader marks it."""

NOT_COMPUTE = ("c10d::", "_c10d_functional::", "c10d_functional::", "autograd::", "torch::autograd")
"""Calls that issue or wait for messages, or that only enclose others."""

COMPILED = "CompiledFxGraph"
"""In the mark of a region that inductor compiled: what runs within has no calls of its own."""

OPERATIONS = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
}
"""What names of calls and marks contain, longer ones before those they contain."""

ELEMENT_BYTES = {
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "double": 8,
    "long int": 8,
    "int": 4,
    "unsigned char": 1,
    "signed char": 1,
    "bool": 1,
    "Float": 4,
    "Half": 2,
    "BFloat16": 2,
    "Double": 8,
    "Long": 8,
    "Int": 4,
    "Byte": 1,
}

MORE_THAN_ANY_BYTES = 2**60
"""Of a message: a trace may state numbers of thousands of digits, beyond what a float holds."""


@dataclass(frozen=True, slots=True)
class TracedCollective:
    """issued_seconds: when the rank asked for it, or its kernel began. size_bytes: of the larger of
    what a rank gives and gets; None where it is not traced. group_size: ranks; 0 likewise."""

    operation: str
    issued_seconds: float
    end_seconds: float
    size_bytes: int | None
    group_size: int = 0


@dataclass(frozen=True, slots=True)
class RankTrace:
    """Times in seconds from one origin per host.

    steps f64[N, 2]: begin and end of each profiled step. step_names: as the profiler numbers them.
    compute, input f64[n, 2]: disjoint intervals in order. collectives: in the order in which they
    were issued. on_device: whether a GPU's kernels were traced. backend: empty where the trace does
    not state it. world_size: ranks of the job; 0 likewise.
    """

    rank: int
    host: str
    steps: F64
    compute: F64
    input: F64
    collectives: tuple[TracedCollective, ...]
    on_device: bool
    backend: str = ""
    step_names: tuple[str, ...] = ()
    world_size: int = 0

    @property
    def seconds_behind(self) -> float:
        """For how long the GPU goes on after the last step's mark, which is the host's."""
        if not self.on_device:
            return 0.0
        ends = [float(self.compute[:, 1].max(initial=0.0))]
        ends += [each.end_seconds for each in self.collectives]
        return max(0.0, max(ends) - float(self.steps[-1, 1]))


def rank_trace(trace: Mapping[str, Any], source: str, rank: int | None = None) -> RankTrace:
    """What a trace has of one rank.

    rank: by default as the trace states it.

    Raises:
        InvalidInput: no trace of torch.profiler, one without marked steps or without operators, one
            that does not state its rank, or one of a job over NCCL without kernels.
    """
    events = trace.get("traceEvents")
    if not isinstance(events, list) or len(events) > MAX_EVENTS:
        raise _refused(source, f"has no list of at most {MAX_EVENTS} events ('traceEvents')")
    sorted_out = _SortedEvents.of(events)
    if not len(sorted_out.steps):
        raise _refused(
            source,
            "has no marked steps",
            remedy="Call prof.step() after each training step while the profiler runs.",
        )
    if not sorted_out.calls and not sorted_out.kernels:
        raise _refused(source, "has no operators")
    stated = trace.get("distributedInfo")
    told: Mapping[str, Any] = stated if isinstance(stated, dict) else {}
    found = told.get("rank") if rank is None else rank
    if not isinstance(found, int) or found < 0:
        raise _refused(
            source,
            "does not state its rank",
            remedy="Record it after torch.distributed is initialized; traces are given rank by "
            "rank.",
        )
    host, backend = trace.get("host_name"), told.get("backend")
    by_nccl = backend == "nccl" or (_may_send_by_nccl(told) and not sorted_out.marks)
    if by_nccl and not sorted_out.kernels:
        raise _refused(
            source,
            "has no kernels, though the job sends by NCCL",
            remedy="Profile with ProfilerActivity.CUDA among the activities, and with no other "
            "profiler on the GPU: the CPU's calls do not tell how long a GPU computes and sends.",
        )
    return RankTrace(
        found,
        host[:80] if isinstance(host, str) else "",
        sorted_out.steps,
        sorted_out.compute(),
        union(sorted_out.input),
        tuple(sorted(sorted_out.collectives(), key=lambda each: each.issued_seconds)),
        bool(sorted_out.kernels),
        backend[:40] if isinstance(backend, str) else "",
        sorted_out.step_names,
        _count(told.get("world_size")),
    )


def _may_send_by_nccl(job: Mapping[str, Any]) -> bool:
    """Whether one of its groups may. A job need not name its backend ("undefined"), or names one
    for each type of device ("cpu:gloo,cuda:nccl")."""
    groups = job.get("pg_config")
    stated = [job.get("backend")]
    if isinstance(groups, list):
        stated += [each.get("backend_config") for each in groups if isinstance(each, dict)]
    return any("nccl" in each for each in stated if isinstance(each, str))


@dataclass(frozen=True, slots=True)
class _Event:
    name: str
    begin: float
    end: float
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _SortedEvents:
    """calls: on the CPU. kernels: on the device. marks: of gloo. input: of loading."""

    steps: F64
    step_names: tuple[str, ...]
    calls: list[_Event]
    kernels: list[_Event]
    marks: list[_Event]
    input: list[tuple[float, float]]

    @classmethod
    def of(cls, events: Sequence[Any]) -> "_SortedEvents":
        steps: dict[str, tuple[float, float]] = {}
        calls, kernels, marks, loading = [], [], [], []
        for event in events:
            if not isinstance(event, dict) or event.get("ph") != "X":
                continue
            name, kind = event.get("name"), event.get("cat")
            begin, length, args = event.get("ts"), event.get("dur"), event.get("args")
            if not (is_time(begin) and is_time(length) and isinstance(name, str)):
                continue
            one = _Event(
                name, begin / 1e6, (begin + length) / 1e6, args if isinstance(args, dict) else {}
            )
            if kind in ON_DEVICE:
                kernels.append(one)
            elif kind == "cpu_op":
                calls.append(one)
            elif kind == "user_annotation":
                if name.startswith(STEP) and one.end > one.begin:
                    steps.setdefault(name, (one.begin, one.end))
                elif name.startswith("gloo:"):
                    marks.append(one)
                elif name.startswith(INPUT_MARKS):
                    loading.append((one.begin, one.end))
                elif COMPILED in name:
                    calls.append(one)
        ordered = sorted(steps, key=lambda each: steps[each])
        bounds = np.array([steps[each] for each in ordered], dtype=np.float64).reshape(-1, 2)
        return cls(bounds, tuple(each[:40] for each in ordered), calls, kernels, marks, loading)

    def compute(self) -> F64:
        if self.kernels:
            return union([(k.begin, k.end) for k in self.kernels if not _is_nccl(k)])
        inside = [
            (call.begin, call.end)
            for call in self.calls
            if ("::" in call.name or COMPILED in call.name)
            and not call.name.startswith(NOT_COMPUTE)
        ]
        return without(union(inside), union(self.input))  # its operators make the batch

    def collectives(self) -> list[TracedCollective]:
        if any(map(_is_nccl, self.kernels)):
            return [_of_kernel(kernel) for kernel in self.kernels if _is_nccl(kernel)]
        return self._of_gloo()

    def _of_gloo(self) -> list[TracedCollective]:
        """gloo takes up what it is asked for in order, so its k-th mark lasts as long as what the
        k-th call has issued."""
        calls = [call for call in self.calls if call.name.startswith("c10d::")]
        calls = sorted(
            (call for call in calls if _operation(call.name)), key=lambda each: each.begin
        )
        marks = sorted(self.marks, key=lambda each: each.begin)
        if len(marks) != len(calls):  # the trace begins or ends among them
            marks = calls
        return [
            TracedCollective(
                _operation(call.name),
                call.begin,
                max(call.end, mark.end),
                max(_traced_bytes(call.args), _traced_bytes(mark.args)) or None,
            )
            for call, mark in zip(calls, marks, strict=True)
            if _operation(call.name) != "barrier"
        ]


def _is_nccl(kernel: _Event) -> bool:
    """Their names begin alike in all versions: ncclKernel_, ncclDevKernel_, ncclSymkDevKernel_."""
    return kernel.name.startswith("nccl")


def _operation(name: str) -> str:
    """As `OPERATIONS` names it; empty where it is none."""
    lower = name.lower()
    return next((known for part, known in OPERATIONS.items() if part in lower), "")


def _of_kernel(kernel: _Event) -> TracedCollective:
    args = kernel.args
    elements = [args.get("In msg nelems"), args.get("Out msg nelems")]
    most = max((count for count in elements if isinstance(count, int)), default=0)
    return TracedCollective(
        _operation(str(args.get("Collective name", ""))) or _operation(kernel.name) or "nccl",
        kernel.begin,
        kernel.end,
        _size_bytes(most, args.get("dtype")) or None,
        _count(args.get("Group size")),
    )


def _count(value: object) -> int:
    """Of ranks; 0 where the trace does not state it."""
    return value if isinstance(value, int) and value > 0 else 0


def _traced_bytes(args: Mapping[str, Any]) -> int:
    """Of the largest tensor among a call's arguments (`record_shapes`); 0 where none is traced."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return 0
    sizes = (
        _size_bytes(prod(shape), kind)
        for shape, kind in zip(dims, types, strict=False)
        if isinstance(shape, list) and shape and all(isinstance(n, int) for n in shape)
    )
    return max(sizes, default=0)


def _size_bytes(elements: int, kind: object) -> int:
    """0 where the type is not known, or where no tensor has so many elements."""
    size = elements * ELEMENT_BYTES.get(str(kind), 0)
    return size if 0 < size < MORE_THAN_ANY_BYTES else 0


def union(intervals: Sequence[tuple[float, float]]) -> F64:
    """The same time as disjoint intervals in order, `(n, 2)`."""
    if not intervals:
        return np.zeros((0, 2))
    given = np.array(sorted(intervals), dtype=np.float64)
    reach = np.maximum.accumulate(given[:, 1])
    first = np.concatenate(([True], given[1:, 0] > reach[:-1]))
    begins = given[first, 0]
    ends = reach[np.concatenate((np.flatnonzero(first)[1:] - 1, [len(given) - 1]))]
    return np.column_stack([begins, ends])


def intersection(one: F64, other: F64) -> F64:
    """The time in both of two lists of disjoint intervals in order, `(n, 2)`."""
    first = np.searchsorted(other[:, 1], one[:, 0], "right")  # the first that ends later
    count = np.maximum(np.searchsorted(other[:, 0], one[:, 1], "left") - first, 0)
    mine = np.repeat(np.arange(len(one)), count)
    its = np.arange(len(mine)) + np.repeat(first - (np.cumsum(count) - count), count)
    begin = np.maximum(one[mine, 0], other[its, 0])
    end = np.minimum(one[mine, 1], other[its, 1])
    found: F64 = np.column_stack([begin, end])[begin < end]
    return found


def without(one: F64, other: F64) -> F64:
    """The time of `one` that is not in `other`; both disjoint intervals in order, `(n, 2)`."""
    if not len(other):
        return one
    between = np.column_stack(
        [np.concatenate(([-np.inf], other[:, 1])), np.concatenate((other[:, 0], [np.inf]))]
    )
    return intersection(one, between)
