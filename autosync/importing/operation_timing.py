"""Times every operation of a real step on the CPU, or on a GPU by its own events."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from autosync.device_clock import Moment, moment_now, seconds_between, wait_for_device
from autosync.errors import InvalidInput, NotSupported
from autosync.graph import ModelGraph
from autosync.importing.graph_assembly import LOOP
from autosync.importing.recorder import Tracker, as_written, module_paths
from autosync.importing.recording_devices import under_autocast, unwrapped
from autosync.importing.refusals import LOSS_PATH, first_line
from autosync.importing.training_step import (
    Inputs,
    Loss,
    check_inputs,
    compute_loss,
    has_batch_size,
    input_tensors,
)

Seconds = tuple[float, ...]

Forward = Callable[..., Any]
"""The forward pass, which returns the loss. Takes what is called between module and loss."""


class Timer(Tracker):
    """Marks around every call, which `read_clock` turns into seconds.

    forward_seconds, backward_seconds: of every operation, views counted with what came before
    them.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.forward_seconds: list[float] = []
        self.backward_seconds: defaultdict[int, float] = defaultdict(float)
        self._device = device
        self._pending: list[tuple[Moment, Moment]] = []
        self._forward: list[list[tuple[Moment, Moment]]] = []
        self._backward: list[tuple[int, Moment, Moment]] = []

    def read_clock(self) -> None:
        """Once the step has ended."""
        wait_for_device(self._device)
        self.forward_seconds = [
            sum(seconds_between(*marks) for marks in calls) for calls in self._forward
        ]
        for operation, start, end in self._backward:
            self.backward_seconds[operation] += seconds_between(start, end)

    def forward_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start = moment_now(self._device)
        out = func(*args, **kwargs)
        self._pending.append((start, moment_now(self._device)))
        return out

    def forward_operation(
        self, operation: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        self._forward.append(self._pending)
        self._pending = []

    def backward_call(
        self, operation: int | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        start = moment_now(self._device)
        out = func(*args, **kwargs)
        self._backward.append((operation or 0, start, moment_now(self._device)))
        return out


def measure_operations(
    module: nn.Module,
    example_inputs: object,
    loss: Loss | None,
    graph: ModelGraph,
    iterations: int,
    device: torch.device,
    autocast: torch.dtype | None = None,
) -> tuple[Seconds, Seconds, float]:
    """Forward and backward seconds of each operation of the graph, and the spread of a whole step:
    the 10th to 90th percentile's width over the median.

    autocast: what the forward pass runs under, as in `import_module`.

    Raises:
        InvalidInput: module or inputs are not those of the graph.
        NotSupported: the step does not run on the device.
    """
    inputs = check_inputs(example_inputs, graph.name)
    module = unwrapped(module)
    _check_same(module, inputs, graph, device)

    def forward_pass(before_loss: Callable[[], None] | None = None) -> Any:
        with under_autocast(autocast, device.type):
            return compute_loss(module, inputs, loss, before_loss)

    gpus = [device] if device.type == "cuda" else []
    with _left_as_it_was(module), torch.random.fork_rng(devices=gpus), torch.enable_grad():
        _step(module, forward_pass, graph.name, device)
        whole = [_step(module, forward_pass, graph.name, device) for _ in range(iterations)]
        timers = [_timed(module, forward_pass, device) for _ in range(iterations)]
    samples = [_attribute(timer, graph) for timer in timers]
    forward = [median(column) for column in zip(*(sample[0] for sample in samples), strict=True)]
    backward = [median(column) for column in zip(*(sample[1] for sample in samples), strict=True)]
    return (
        _scaled(forward, median(seconds for seconds, _ in whole)),
        _scaled(backward, median(seconds for _, seconds in whole)),
        _spread([sum(step) for step in whole]),
    )


def _spread(seconds: list[float]) -> float:
    low, high = np.percentile(seconds, [10, 90])
    return float(high - low) / median(seconds)


def _check_same(module: nn.Module, inputs: Inputs, graph: ModelGraph, device: torch.device) -> None:
    shapes = {key: tuple(p.shape) for key, p in module.named_parameters() if p.requires_grad}
    if shapes != {variable.name: variable.shape for variable in graph.variables}:
        raise InvalidInput(
            f"the module's {len(shapes)} variables are not the {len(graph.variables)} of graph "
            f"{graph.name!r}.",
            thing="module",
            value=len(shapes),
            remedy="Import this module, and profile it with its own graph.",
        )
    given = input_tensors(inputs)
    if not has_batch_size(inputs, graph.batch_size):
        raise InvalidInput(
            f"the example inputs have shapes {[tuple(value.shape) for value in given]}, the graph "
            f"is of batch size {graph.batch_size}.",
            thing="example_inputs",
            value=graph.batch_size,
            remedy="Profile at the batch size of the graph.",
        )
    tensors = [*module.parameters(), *module.buffers(), *given]
    if other := next((t.device.type for t in tensors if t.device.type != device.type), None):
        raise NotSupported(
            f"the profile is measured on {device.type!r}, but a tensor is on {other!r}.",
            thing="device",
            value=other,
            remedy="Build module and inputs on that device, or use an estimated profile.",
        )


@contextmanager
def _left_as_it_was(module: nn.Module) -> Iterator[None]:
    """Put buffers and gradients back (a step does not change weights)."""
    buffers = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False, remove_duplicate=False)
    ]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for part, name, buffer, value in buffers:
                buffer.copy_(value)
                part._buffers[name] = buffer  # forward may have put another in its place
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _step(
    module: nn.Module, forward_pass: Forward, name: str, device: torch.device
) -> tuple[float, float]:
    """Seconds of one whole forward and backward pass."""
    for parameter in module.parameters():
        parameter.grad = None
    try:
        start = moment_now(device)
        value = forward_pass()
        middle = moment_now(device)
        value.backward()
        end = moment_now(device)
        wait_for_device(device)
    except Exception as error:  # the user's own code may raise anything
        where = "this CPU" if device.type == "cpu" else str(device)
        raise NotSupported(
            f"{name!r} does not run on {where}: {first_line(error)}.",
            thing="module",
            value=type(error).__name__,
            remedy="Use an estimated profile.",
        ) from None
    return seconds_between(start, middle), seconds_between(middle, end)


def _timed(module: nn.Module, forward_pass: Forward, device: torch.device) -> Timer:
    for parameter in module.parameters():
        parameter.grad = None
    timer = Timer(device)

    def in_loss() -> None:
        timer.path = LOSS_PATH

    with as_written(), timer, module_paths(module, timer):
        value = forward_pass(in_loss)
        timer.start_backward()
        value.backward()
    timer.read_clock()
    return timer


def _attribute(timer: Timer, graph: ModelGraph) -> tuple[list[float], list[float]]:
    """Seconds of each operation of the graph. Where the CPU runs other operations than the
    recording did (fused ones, say), a module's seconds are shared out evenly among those of its
    operations that were not seen, or belong to the loop that the module is called in."""
    index = {operation.name: i for i, operation in enumerate(graph.operations)}
    seen = set(timer.names)
    unseen: defaultdict[str, list[int]] = defaultdict(list)
    for i, operation in enumerate(graph.operations):
        if operation.name not in seen:
            path = operation.name.rpartition(f".{operation.type}")[0]
            unseen[path].append(i)
    forward, backward = [0.0] * len(index), [0.0] * len(index)
    for i, name in enumerate(timer.names):
        path = timer.paths[i]
        targets = [index[name]] if name in index else unseen[path]
        while path and not targets:
            path = path.rpartition(".")[0]
            targets = [each for each in unseen[path] if graph.operations[each].type == LOOP]
        for target in targets:
            forward[target] += timer.forward_seconds[i] / len(targets)
            backward[target] += timer.backward_seconds[i] / len(targets)
    return forward, backward


def _scaled(seconds: list[float], total_seconds: float) -> Seconds:
    scale = total_seconds / sum(seconds)
    return tuple(value * scale for value in seconds)
