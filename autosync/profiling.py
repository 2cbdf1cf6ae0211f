"""Profiles: measured on this machine's CPU or GPU, estimated from a device's data sheet, scaled
to a step time the user knows, or fitted to profiles at several batch sizes."""

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosync.devices import DEVICE_TYPES, DeviceType, device_type_of_gpu
from autosync.domain import Profile
from autosync.errors import InvalidInput, NotSupported
from autosync.graph import ATTENTION, ITEM_BYTES, DType, ModelGraph, Operation

if TYPE_CHECKING:
    import torch
    from torch import nn

    from autosync.importing.several_examples import Examples
    from autosync.importing.training_step import Inputs, Loss

EFFICIENCY = 0.65
"""Share of its peak that a device reaches in matrix products and convolutions."""

MATRIX_PRODUCTS = frozenset({"addmm", "mm", "bmm", "baddbmm", "linear", "matmul", ATTENTION})
MATRIX_SHARE, CONVOLUTION_SHARE = 1.17, 0.745
"""Of that efficiency, on GPUs without TF32. With them an RTX 2080 Ti is estimated at 253 images/s
of ResNet-50 and 213 sentences/s of BERT-base (batch 64), as was measured (Shi et al. 2020, arXiv
2005.13247)."""
TENSOR_CORE_SHARES = {"convolution": 0.6, ATTENTION: 0.5}
"""Of that efficiency, on tensor cores: their peak outruns what feeds them. With them an A100 is
estimated at 2,485 images/s of ResNet-50 under autocast and 1,243 in TF32 (batch 256), where 2,375
and 909 were measured, and MPT of 1 to 7 billion parameters within 15 % at 512 to 32,768 tokens
(NVIDIA DeepLearningExamples and llm-foundry, datasets/measurements)."""
LAUNCH_SECONDS = 4e-6
"""Least time of an operation on a GPU: from one kernel to the next."""
WINOGRAD_SAVING = 2.25
"""Times fewer multiplications that a 3x3 convolution of stride 1 takes by Winograd's algorithm
F(2x2, 3x3) (Lavin and Gray 2016), which cuDNN takes for them in float32."""

LOOKUPS = frozenset({"embedding", "_embedding_bag"})
"""Operations that read a few rows of their variable, not all of it."""


def estimate_profile(
    graph: ModelGraph, device_type: str, *, efficiency: float = EFFICIENCY, slowdown: float = 1.0
) -> Profile:
    """A roofline: each operation takes the longer of its FLOPs at `efficiency` of the device's
    peak in the operation's type (on GPUs times a share by its class) and its bytes at the
    device's memory bandwidth, on a GPU at least the time of a launch; times its frequency, and
    all of it `slowdown` times as long.

    Raises:
        InvalidInput: unknown device type; efficiency outside (0, 1]; slowdown not positive.
    """
    device = _device(device_type)
    if not 0 < efficiency <= 1:
        raise _refused("efficiency", efficiency, "in (0, 1]")
    if not 0 < slowdown < float("inf"):
        raise _refused("slowdown", slowdown, "positive")
    by_class = device.is_gpu and not device.tf32
    trained, dtypes = reach_variables(graph), operation_dtypes(graph)
    forward, backward = [], []
    for index, operation in enumerate(graph.operations):
        moved = forward_bytes(graph, operation)
        in_float32 = device.flops_per_second(dtypes[index]) == device.peak_flops_per_second
        flops_per_second = device.flops_per_second(dtypes[index]) * (
            _class_efficiency(graph, operation, efficiency)
            if by_class and in_float32
            else efficiency * TENSOR_CORE_SHARES.get(operation.type, 1.0)
            if device.is_gpu
            else efficiency
        )
        runs = operation.frequency
        forward.append(runs * _roofline(operation.forward_flops, moved, flops_per_second, device))
        moved = backward_bytes(graph, operation) if trained[index] else 0
        flops = operation.backward_flops
        backward.append(runs * _roofline(flops, moved, flops_per_second, device))
    slower = f", {slowdown:g} times slower" if slowdown != 1 else ""
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


def profile_from_step_seconds(graph: ModelGraph, step_seconds: float, device_type: str) -> Profile:
    """The estimate for `device_type`, scaled so that forward and backward take `step_seconds`.

    For users who know how long a step takes on one device. That time holds the optimizer's
    update, so update_seconds is 0.

    Raises:
        InvalidInput: unknown device type; step_seconds not positive.
    """
    if not 0 < step_seconds < float("inf"):
        raise _refused("step_seconds", step_seconds, "positive")
    estimate = estimate_profile(graph, device_type)
    scale = step_seconds / estimate.compute_seconds
    return replace(
        estimate,
        forward_seconds=tuple(seconds * scale for seconds in estimate.forward_seconds),
        backward_seconds=tuple(seconds * scale for seconds in estimate.backward_seconds),
        update_seconds=0.0,
        note=f"shape of a {device_type} roofline, scaled to a stated step of "
        f"{step_seconds * 1e3:g} ms (update included)",
    )


def measure_profile(
    module: "nn.Module",
    example_inputs: "Inputs | Examples",
    loss: "Loss | None",
    graph: ModelGraph,
    *,
    iterations: int = 5,
    device: str = "cpu",
) -> Profile:
    """Run the step on this machine, whole and operation by operation, after a step to warm up.

    device: the CPU, or a GPU as torch names it (`cuda:0`), where CUDA events measure; module and
        inputs lie there.

    The operations' medians are scaled so that they add up to the median whole pass; of several
    examples, each is measured, and an operation's seconds are their mean. Weights, buffers,
    gradients and the random state are left as they were. update_seconds is estimated.

    Raises:
        InvalidInput: the inputs or the module are not those of the graph; iterations below 1.
        NotSupported: the step does not run on the device, torch sees no such GPU, or the GPU is of
            no known type.
    """
    import torch

    from autosync.importing.operation_timing import measure_operations
    from autosync.importing.several_examples import each_example

    if iterations < 1:
        raise _refused("iterations", iterations, "at least 1")
    place, device_type = torch_device(device), "cpu"
    where = f"this CPU with {torch.get_num_threads()} threads"
    if place.type == "cuda":
        where = torch.cuda.get_device_name(place)
        device_type = device_type_of_gpu(where)
    measured = [
        measure_operations(module, example, loss, graph, iterations, place)
        for example in each_example(example_inputs)
    ]
    forward, backward, spreads = zip(*measured, strict=True)
    shown = f" of each of {len(measured)} example inputs" if len(measured) > 1 else ""
    return Profile(
        device=device_type,
        batch_size=graph.batch_size,
        forward_seconds=tuple(map(fmean, zip(*forward, strict=True))),
        backward_seconds=tuple(map(fmean, zip(*backward, strict=True))),
        update_seconds=update_seconds(graph, device_type),
        source="measured",
        note=f"median of {iterations} steps{shown} on {where}, torch {torch.__version__}, spread "
        f"{max(spreads):.0%}; update estimated",
    )


def torch_device(name: str) -> "torch.device":
    """The CPU, or a GPU that torch sees.

    Raises:
        InvalidInput: no device of torch's is called so.
        NotSupported: torch sees no such GPU.
    """
    import torch

    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise InvalidInput(
            f"no device is called {name[:40]!r}.",
            thing="device",
            value=name,
            remedy="Measure on cpu or cuda:0, or name a device type to estimate for.",
        )
    place = torch.device(name)
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise NotSupported(
            f"torch sees no {name}: it has {torch.cuda.device_count()} GPUs here.",
            thing="device",
            value=name,
            remedy="Estimate with a device type (--device a100), or profile where the GPU is.",
        )
    return place


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


Floats = NDArray[np.float64]


def profile_at_batch(graph: ModelGraph, profiles: Sequence[Profile]) -> Profile:
    """Each operation's seconds at the batch size of `graph` on the line fitted to its seconds at
    the batch sizes of `profiles`, all of this model on one device. No line falls with the batch or
    begins below zero. An estimate; its note names the batch sizes and the largest residual.

    Raises:
        InvalidInput: fewer than two batch sizes, or profiles of another device or another model.
    """
    batches = np.array([profile.batch_size for profile in profiles], dtype=np.float64)
    if len(set(batches.tolist())) < 2:
        raise _not_joined("batch_size", batches.tolist(), "a line needs two different batch sizes")
    devices = {profile.device for profile in profiles}
    if len(devices) > 1:
        raise _not_joined("device", sorted(devices), "profiles of one device can be joined")
    counts = {len(profile.forward_seconds) for profile in profiles}
    if counts != {len(graph.operations)}:
        raise _not_joined("operations", sorted(counts), f"graph {graph.name!r} has another number")
    wanted = float(graph.batch_size)
    forward = _on_lines(batches, [p.forward_seconds for p in profiles], wanted)
    backward = _on_lines(batches, [p.backward_seconds for p in profiles], wanted)
    whole = np.array([[profile.compute_seconds] for profile in profiles])
    residual = max(
        abs(_on_lines(batches, whole, batch)[0] / seconds[0] - 1)
        for batch, seconds in zip(batches, whole, strict=True)
    )
    sizes = ", ".join(f"{batch:g}" for batch in sorted(set(batches.tolist())))
    return Profile(
        device=profiles[0].device,
        batch_size=graph.batch_size,
        forward_seconds=tuple(forward.tolist()),
        backward_seconds=tuple(backward.tolist()),
        update_seconds=float(np.median([profile.update_seconds for profile in profiles])),
        source="estimated",
        note=f"by regression over batch sizes {sizes}, whole steps within {residual:.0%} of it",
    )


def _on_lines(batches: Floats, seconds: object, wanted: float) -> Floats:
    """Values at `wanted` of lines through seconds `(profiles, operations)`: `(operations,)`."""
    values = np.array(seconds, dtype=np.float64)
    centre = batches - batches.mean()
    mean = values.mean(axis=0)
    slope = np.maximum(centre @ values / (centre @ centre), 0.0)
    through_zero = batches @ values / (batches @ batches)
    falls_short = mean - slope * batches.mean() < 0
    fitted = mean + slope * (wanted - batches.mean())
    result: Floats = np.where(falls_short, through_zero * wanted, fitted)
    return result


def _not_joined(thing: str, value: object, why: str) -> InvalidInput:
    return InvalidInput(
        f"the profiles' {thing} are {value}: {why}.",
        thing=f"profiles, {thing}",
        value=value,
        remedy="Give `autosync profile` files of this model, at two or more batch sizes.",
    )
