"""Profiles estimated from a device's data sheet, or scaled to a step time the user knows."""

from dataclasses import replace

from autosync.cluster.devices import DEVICE_TYPES, DeviceType
from autosync.domain import Profile
from autosync.errors import InvalidInput
from autosync.graph import ATTENTION, ITEM_BYTES, DType, ModelGraph, Operation

EFFICIENCY = 0.65
"""Share of its peak that a device reaches in matrix products and convolutions."""

MATRIX_PRODUCTS = frozenset({"addmm", "mm", "bmm", "baddbmm", "linear", "matmul", ATTENTION})
MATRIX_SHARE, CONVOLUTION_SHARE = 1.17, 0.745
"""Of that efficiency, without tensor cores. With them an RTX 2080 Ti is estimated at 253 images/s
of ResNet-50 and 213 sentences/s of BERT-base (batch 64), as was measured (Shi et al. 2020, arXiv
2005.13247)."""
TENSOR_CORE_SHARES = {"convolution": 0.6, ATTENTION: 0.5}
"""Of that efficiency, on tensor cores: their peak outruns what feeds them. With them an A100 is
estimated at 2,485 images/s of ResNet-50 under autocast and 1,243 in TF32 (batch 256), where 2,375
and 909 were measured, and MPT of 1 to 7 billion parameters within 15 % at 512 to 32,768 tokens
(NVIDIA DeepLearningExamples and llm-foundry, datasets/measurements)."""
LAUNCH_SECONDS = 4e-6
"""Least time of an operation on a GPU: from one kernel to the next."""
HOST_SECONDS = 40e-6
"""What the host takes to ask a GPU for an operation, forward or backward, in eager mode: torch's
own calls between a module and its kernels. Set by three models on one host beside an H200, whose
iterations without synchronization took 79 (GPT-2 small), 81 (BERT, 3 layers) and 113 us (ResNet-50)
an operation of the graph for both passes (docs/gpus.md). Bound: 10 to 100 us; compiled models and
CUDA graphs take less."""
WINOGRAD_SAVING = 2.25
"""Times fewer multiplications that a 3x3 convolution of stride 1 takes by Winograd's algorithm
F(2x2, 3x3) (Lavin and Gray 2016), which cuDNN takes for them in float32."""

LOOKUPS = frozenset({"embedding", "_embedding_bag"})
"""Operations that read a few rows of their variable, not all of it."""


def estimate_profile(
    graph: ModelGraph,
    device_type: str,
    *,
    efficiency: float = EFFICIENCY,
    slowdown: float = 1.0,
    tf32: bool = False,
    host_seconds: float = HOST_SECONDS,
) -> Profile:
    """A roofline: each operation takes the longer of its FLOPs at `efficiency` of the device's
    peak in the operation's type (on GPUs times a share by its class) and its bytes at the
    device's memory bandwidth, on a GPU at least the time of a launch; times its frequency, and
    all of it `slowdown` times as long. A GPU begins an operation when the host has asked for it.

    tf32: matrix products of float32 may be computed as TF32
        (`torch.set_float32_matmul_precision("high")`). By torch's default convolutions may, and
        matrix products may not.
    host_seconds: an operation and pass; 0 where the host is known not to hold the GPU up.

    Raises:
        InvalidInput: unknown device type; efficiency outside (0, 1]; slowdown not positive.
    """
    device = _device(device_type)
    if not 0 < efficiency <= 1:
        raise _refused("efficiency", efficiency, "in (0, 1]")
    if not 0 < slowdown < float("inf"):
        raise _refused("slowdown", slowdown, "positive")
    trained, dtypes = reach_variables(graph), operation_dtypes(graph)
    forward, backward = [], []
    for index, operation in enumerate(graph.operations):
        moved = forward_bytes(graph, operation)
        flops_per_second = _flops_per_second(
            graph, operation, device, dtypes[index], efficiency, tf32
        )
        runs = operation.frequency
        forward.append(runs * _roofline(operation.forward_flops, moved, flops_per_second, device))
        moved = backward_bytes(graph, operation) if trained[index] else 0
        flops = operation.backward_flops
        backward.append(runs * _roofline(flops, moved, flops_per_second, device))
    on_device = sum(forward) + sum(backward)
    if device.is_gpu:
        forward, backward = _asked_by_host(graph, forward, backward, host_seconds)
    held_up = 1 - on_device / max(sum(forward) + sum(backward), on_device, 1e-12)
    slower = f", {slowdown:g} times slower" if slowdown != 1 else ""
    if held_up > HELD_UP_SHARE:
        slower += (
            f"; the GPU waits for the host in {held_up:.0%} of a step, at "
            f"{host_seconds * 1e6:g} us an operation in eager mode"
        )
    shown = f", the mean of {graph.examples} example inputs" if graph.examples > 1 else ""
    return Profile(
        device=device_type,
        batch_size=graph.batch_size,
        forward_seconds=tuple(seconds * slowdown for seconds in forward),
        backward_seconds=tuple(seconds * slowdown for seconds in backward),
        update_seconds=update_seconds(graph, device_type) * slowdown,
        source="estimated",
        note=f"roofline of one {device_type} at {efficiency:.0%} of its peak{slower}{shown}",
    )


HELD_UP_SHARE = 0.05
"""Of a step that a GPU waits for its host, from which on a profile says so."""


def _asked_by_host(
    graph: ModelGraph, forward: list[float], backward: list[float], host_seconds: float
) -> tuple[list[float], list[float]]:
    """By how much each operation moves the GPU's clock on, of the seconds that its kernels take: a
    GPU that is ahead waits until the host has asked for the next one."""
    behind = 0.0  # seconds by which the GPU is behind the host

    def taken(kernels: float, runs: float) -> float:
        nonlocal behind
        if not kernels:
            return 0.0
        waited = max(0.0, runs * host_seconds - behind)
        behind = max(0.0, behind - runs * host_seconds) + kernels
        return waited + kernels

    runs = [operation.frequency for operation in graph.operations]
    forward = [taken(kernels, n) for kernels, n in zip(forward, runs, strict=True)]
    reverse = zip(reversed(backward), reversed(runs), strict=True)
    return forward, [taken(kernels, n) for kernels, n in reverse][::-1]


def _flops_per_second(
    graph: ModelGraph,
    operation: Operation,
    device: DeviceType,
    dtype: DType,
    efficiency: float,
    tf32: bool,
) -> float:
    """That an operation reaches."""
    if not device.is_gpu:
        return device.flops_per_second(dtype) * efficiency
    in_float32 = device.flops_per_second(dtype) == device.peak_flops_per_second
    as_tf32 = device.tf32 and (tf32 or operation.type not in MATRIX_PRODUCTS)
    if in_float32 and not as_tf32:
        peak = device.flops_per_second(dtype, tf32=False)
        return peak * _class_efficiency(graph, operation, efficiency)
    return device.flops_per_second(dtype) * efficiency * TENSOR_CORE_SHARES.get(operation.type, 1.0)


def profile_from_step_seconds(
    graph: ModelGraph, step_seconds: float, device_type: str, *, tf32: bool = False
) -> Profile:
    """The estimate for `device_type`, scaled so that forward and backward take `step_seconds`.

    For users who know how long a step takes on one device. That time holds the optimizer's
    update, so update_seconds is 0. tf32: as in `estimate_profile`.

    Raises:
        InvalidInput: unknown device type; step_seconds not positive; a graph of which no operation
            takes time.
    """
    if not 0 < step_seconds < float("inf"):
        raise _refused("step_seconds", step_seconds, "positive")
    estimate = estimate_profile(graph, device_type, tf32=tf32, host_seconds=0.0)
    if not estimate.compute_seconds:
        raise InvalidInput(
            f"graph {graph.name!r}: no operation has FLOPs or bytes to share out seconds by.",
            thing="graph",
            value=graph.name,
            remedy="Import the module again with `autosync import`.",
        )
    scale = step_seconds / estimate.compute_seconds
    return replace(
        estimate,
        forward_seconds=tuple(seconds * scale for seconds in estimate.forward_seconds),
        backward_seconds=tuple(seconds * scale for seconds in estimate.backward_seconds),
        update_seconds=0.0,
        note=f"shape of a {device_type} roofline, scaled to a stated step of "
        f"{step_seconds * 1e3:g} ms (update included)",
    )


def update_seconds(graph: ModelGraph, device_type: str) -> float:
    """SGD with momentum reads value, gradient and momentum and writes value and momentum: five
    times the touched bytes over the memory bandwidth."""
    touched = sum(
        variable.size_bytes // variable.shape[0] * variable.touched_rows
        if variable.sparse
        else variable.size_bytes
        for variable in graph.variables
    )
    return 5 * touched / _device(device_type).memory_bytes_per_second


def _class_efficiency(graph: ModelGraph, operation: Operation, efficiency: float) -> float:
    """Share of the peak by counted FLOPs; those that Winograd's algorithm saves count as done."""
    if operation.type in MATRIX_PRODUCTS:
        return min(1.0, efficiency * MATRIX_SHARE)
    if operation.type != "convolution":
        return efficiency
    saving = WINOGRAD_SAVING if takes_winograd(graph, operation) else 1.0
    return efficiency * CONVOLUTION_SHARE * saving


def takes_winograd(graph: ModelGraph, operation: Operation) -> bool:
    """Whether a convolution has kernels of 3x3, stride 1 and no groups.

    A graph states neither stride nor groups. A stride of 2 has four times as many inputs a channel
    as outputs; g groups have g times as many by the channels that a kernel sees.
    """
    shapes = [graph.variables[i].shape for i in operation.variables]
    kernels = [shape for shape in shapes if len(shape) == 4 and shape[2:] == (3, 3)]
    if not kernels:
        return False
    outputs, inputs = kernels[0][:2]
    return _input_bytes(graph, operation) / inputs < 3.5 * operation.output_bytes / outputs


def _roofline(flops: int, moved_bytes: int, flops_per_second: float, device: DeviceType) -> float:
    seconds = max(flops / flops_per_second, moved_bytes / device.memory_bytes_per_second)
    return max(seconds, LAUNCH_SECONDS) if seconds and device.is_gpu else seconds


def _input_bytes(graph: ModelGraph, operation: Operation) -> int:
    """What follows two branches reads one of them at a time."""
    inputs = [graph.operations[i] for i in operation.inputs]
    return round(
        sum(each.output_bytes * min(1.0, each.frequency / operation.frequency) for each in inputs)
    )


def _variable_bytes(graph: ModelGraph, operation: Operation) -> int:
    return sum(graph.variables[i].size_bytes for i in operation.variables)


def forward_bytes(graph: ModelGraph, operation: Operation) -> int:
    """Inputs and variables are read, the output is written; a lookup reads what it writes."""
    if operation.type in LOOKUPS:
        return 2 * operation.output_bytes
    return (
        _input_bytes(graph, operation) + _variable_bytes(graph, operation) + operation.output_bytes
    )


def backward_bytes(graph: ModelGraph, operation: Operation) -> int:
    """The output's gradient, inputs and variables are read; gradients of both are written. A
    lookup's dense gradient is cleared and then added to, row by row."""
    if operation.type in LOOKUPS:
        dense = [graph.variables[i] for i in operation.variables if not graph.variables[i].sparse]
        return 3 * operation.output_bytes + sum(variable.size_bytes for variable in dense)
    read_and_written = _input_bytes(graph, operation) + _variable_bytes(graph, operation)
    return operation.output_bytes + 2 * read_and_written


def reach_variables(graph: ModelGraph) -> list[bool]:
    """Whether each operation depends on a variable, so that backward passes through it."""
    reach: list[bool] = []
    for operation in graph.operations:
        reach.append(bool(operation.variables) or any(reach[i] for i in operation.inputs))
    return reach


def operation_dtypes(graph: ModelGraph) -> list[DType]:
    """The type each operation computes in, as the graph states it. Where all are float32 nothing is
    stated: then of its variables, else of what it reads."""
    stated: list[DType] = [operation.dtype for operation in graph.operations]
    if any(dtype != "float32" for dtype in stated):
        return stated
    found: list[DType] = []
    for operation in graph.operations:
        own = [graph.variables[i].dtype for i in operation.variables]
        known = own or [found[i] for i in operation.inputs]
        found.append(max(known, key=lambda name: ITEM_BYTES[name]) if known else "float32")
    return found


def _device(device_type: str) -> DeviceType:
    if device_type not in DEVICE_TYPES:
        raise InvalidInput(
            f"device type {device_type!r} is unknown.",
            thing="device",
            value=device_type,
            remedy=f"Known: {', '.join(DEVICE_TYPES)}.",
        )
    return DEVICE_TYPES[device_type]


def _refused(field: str, value: object, must: str) -> InvalidInput:
    return InvalidInput(
        f"{field} must be {must}, got {value!r}.",
        thing=field,
        value=value,
        remedy=f"Give {field} as a number that is {must}, or leave it out.",
    )
