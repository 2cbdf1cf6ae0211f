"""Chakra execution traces: how operators called each other, and what they and their kernels took.

MLCommons' Chakra (github.com/mlcommons/chakra) links what torch.profiler's ExecutionTraceObserver
writes to the times of a Kineto trace. Read are the linked JSON (`chakra_trace_link`) and the
protobuf file made of it (`chakra_converter`), whose times are whole microseconds. Converters up to
Chakra 0.0.4 cut a call into segments, `aten::conv2d(0)`, `(1)`, ..., one before each kernel that it
launches, and leave out the calls within it and autograd's nodes.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosync.errors import InvalidInput
from autosync.interop.kineto_trace import BACKWARD, STEP, TracedCall, TracedSteps

SCHEMAS = ("1.0.2", "1.0.3", "1.1.0", "1.1.1")
"""Of PyTorch's observer, as far as they are Chakra's 0.0.4 or 1.0.0."""
MAX_NODES = 1_000_000
MAX_MESSAGE_BYTES = 1_000_000
MAX_METADATA_BYTES = 65_536
USER_SCOPE = 7
"""torch's RecordScope of annotations: threads, steps, what `record_function` marks."""
LONGEST_US = 1e12

SEGMENT = re.compile(r"(.*)\([0-9]{1,6}\)")
CALLED_BY_MODULES = {
    "aten::conv1d": "aten::convolution",
    "aten::conv2d": "aten::convolution",
    "aten::conv3d": "aten::convolution",
    "aten::batch_norm": "aten::native_batch_norm",
    "aten::layer_norm": "aten::native_layer_norm",
    "aten::group_norm": "aten::native_group_norm",
    "aten::linear": "aten::addmm",
    "aten::matmul": "aten::mm",
    "aten::max_pool2d": "aten::max_pool2d_with_indices",
    "aten::adaptive_avg_pool2d": "aten::mean",
    "aten::dropout": "aten::native_dropout",
    "aten::softmax": "aten::_softmax",
    "aten::log_softmax": "aten::_log_softmax",
}
"""What is in a graph for calls that segments name: the operator that does their work."""
RUNS_BACKWARD = {
    "aten::convolution_backward": ("aten::convolution",),
    "aten::cudnn_batch_norm_backward": ("aten::native_batch_norm",),
    "aten::native_batch_norm_backward": ("aten::native_batch_norm",),
    "aten::native_layer_norm_backward": ("aten::native_layer_norm",),
    "aten::native_group_norm_backward": ("aten::native_group_norm",),
    "aten::threshold_backward": ("aten::relu", "aten::relu_"),
    "aten::gelu_backward": ("aten::gelu",),
    "aten::silu_backward": ("aten::silu", "aten::silu_"),
    "aten::max_pool2d_with_indices_backward": ("aten::max_pool2d_with_indices",),
    "aten::embedding_dense_backward": ("aten::embedding",),
    "aten::_softmax_backward_data": ("aten::_softmax",),
}
"""Operators of backward passes, and the calls of forward passes whose gradients they compute."""


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """parent: the node that called it. own_us: its own duration, without what it called.
    sequence: of the autograd node that it makes, or runs; -1 without. waits_for: ids of the nodes
    before it. function: the id of the record function that it is part of, 0 without."""

    id: int
    name: str
    parent: int
    own_us: float
    sequence: int
    on_device: bool
    is_annotation: bool
    waits_for: tuple[int, ...] = ()
    function: int = 0


def is_chakra_file(data: bytes) -> bool:
    """Whether the bytes begin with a Chakra file's metadata, and are no JSON."""
    if data[:64].lstrip()[:1] in (b"{", b"["):
        return False
    from autosync.interop.protobuf_messages import parse_message, split_delimited

    try:
        first = next(split_delimited(data[:MAX_METADATA_BYTES], "metadata"), b"")
        metadata = parse_message("Metadata", first, "metadata", MAX_METADATA_BYTES)
    except InvalidInput:
        return False
    return bool(metadata.version) or any(a.name == "schema" for a in metadata.attr)


def read_chakra_file(data: bytes, source: str) -> TracedSteps:
    """The profiled steps of a protobuf file; all of it where no step is marked.

    Raises:
        InvalidInput: it is damaged, too large, or has no times.
    """
    from autosync.interop.protobuf_messages import parse_message, split_delimited

    messages = split_delimited(data, source)
    next(messages)  # the metadata
    nodes = []
    for number, message in enumerate(messages, 1):
        if number > MAX_NODES:
            raise _refused(source, f"has more than {MAX_NODES} nodes")
        nodes.append(_of_message(parse_message("ChakraNode", message, source, MAX_MESSAGE_BYTES)))
    if any(not node.on_device and SEGMENT.fullmatch(node.name) for node in nodes):
        return _joined_segments(nodes, source)
    return _steps(nodes, source)


def _joined_segments(nodes: Sequence[ChakraNode], source: str) -> TracedSteps:
    """The calls whose segments these are, as one step: such a file has no marks.

    Segments of a call have one record function's id. A kernel waits for the segment that launched
    it. Autograd runs backward in the reverse order of forward, so the k-th operator of a kind
    from behind belongs to the k-th call of its kind.
    """
    if not any(node.own_us for node in nodes):
        raise _refused(source, "has no durations")
    calls: dict[tuple[int, str], TracedCall] = {}
    launched_by: dict[int, TracedCall] = {}
    for node in sorted(nodes, key=lambda each: each.id):
        seconds = node.own_us / 1e6
        if node.on_device:
            before = [each for each in node.waits_for if each in launched_by]
            if before:
                launched_by[max(before)].own_kernel_seconds += seconds
            continue
        segment = SEGMENT.fullmatch(node.name)
        name = segment[1] if segment else node.name
        key = (node.function or -node.id, name)
        called = CALLED_BY_MODULES.get(name, name)
        sequence = node.sequence if node.sequence >= 0 else None
        call = calls.setdefault(key, TracedCall(called, 0.0, sequence))
        call.host_seconds += seconds
        launched_by[node.id] = call
    backward = tuple(_backward_nodes(list(calls.values())))
    by_kernels = any(call.own_kernel_seconds for call in calls.values())
    forward = tuple(call for call in calls.values() if call.name not in RUNS_BACKWARD)
    return TracedSteps(((*forward, *backward),), by_kernels, whole_backward=False)


def _backward_nodes(calls: Sequence[TracedCall]) -> Iterator[TracedCall]:
    """For each operator of a backward pass whose call is known, an autograd node that runs it."""
    named: defaultdict[str, list[TracedCall]] = defaultdict(list)
    for call in calls:
        named[call.name].append(call)
    for name, kinds in RUNS_BACKWARD.items():
        makers = [call for call in calls if call.name in kinds and call.sequence is not None]
        if len(makers) == len(named[name]):
            for maker, run in zip(makers, reversed(named[name]), strict=True):
                yield TracedCall(BACKWARD, run.host_seconds, maker.sequence, below=[run])


def read_chakra_json(trace: Mapping[str, Any], source: str) -> TracedSteps:
    """The profiled steps of a linked trace; all of it where no step is marked.

    Raises:
        InvalidInput: it is of another schema, too large, or has no times.
    """
    schema = trace.get("schema")
    known = isinstance(schema, str) and "-chakra." in schema and schema.startswith(SCHEMAS)
    if not known:
        raise _refused(source, f"is of schema {str(schema)[:40]!r}, not {', '.join(SCHEMAS)}")
    nodes = trace.get("nodes")
    if not isinstance(nodes, list) or len(nodes) > MAX_NODES:
        raise _refused(source, f"has no list of at most {MAX_NODES} nodes")
    return _steps([node for each in nodes if (node := _of_json(each)) is not None], source)


def _of_message(message: Any) -> ChakraNode:
    given = {attribute.name: attribute for attribute in message.attr}
    return ChakraNode(
        id=message.id,
        name=message.name,
        parent=message.ctrl_deps[0] if message.ctrl_deps else message.id,
        own_us=_microseconds(message.duration_micros),
        sequence=_number(given.get("seq_id"), -1),
        on_device="is_cpu_op" in given and not given["is_cpu_op"].bool_val,
        is_annotation=_number(given.get("scope")) == USER_SCOPE,
        waits_for=tuple(message.data_deps),
        function=_number(given.get("rf_id")),
    )


def _number(attribute: Any, default: int = 0) -> int:
    """The whole number of an attribute, whichever of its fields holds it."""
    if attribute is None:
        return default
    fields = ("int64_val", "uint64_val", "int32_val", "uint32_val")
    return next((value for name in fields if (value := getattr(attribute, name))), 0)


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
        sequence=sequence if type(sequence) is int else -1,
        on_device=on_device,
        is_annotation=attributes.get("scope") == USER_SCOPE,
    )


def _microseconds(value: object) -> float:
    """0 where there is none: the device's trace does not have every call of the host's."""
    return float(value) if isinstance(value, int | float) and 0 <= value <= LONGEST_US else 0.0


def _steps(nodes: Sequence[ChakraNode], source: str) -> TracedSteps:
    if not any(node.own_us for node in nodes):
        raise _refused(
            source,
            "has no durations",
            "A trace of the host alone has none: link it to the profiler's with chakra_trace_link, "
            "or give the profiler's.",
        )
    roots = _root_calls(nodes, source)
    if not roots:
        raise _refused(source, "has no operators on the CPU")
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
            call = inside[node.id] = TracedCall(
                node.name, seconds, node.sequence if node.sequence >= 0 else None
            )
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
        raise _refused(source, "gives two nodes one id")
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
        raise _refused(source, "has nodes that call each other in a circle")
    return ordered


def _refused(source: str, why: str, remedy: str = "") -> InvalidInput:
    return InvalidInput(
        f"{source}: it {why}.",
        thing=source,
        value=why,
        remedy=remedy or "Give what chakra_trace_link or chakra_converter writes.",
    )
