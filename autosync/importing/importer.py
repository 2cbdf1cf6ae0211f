"""import_module: one recorded training step becomes a ModelGraph."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from autosync.errors import NotTraceable
from autosync.graph import ModelGraph
from autosync.importing import refusals
from autosync.importing.attention import FusedAttention
from autosync.importing.graph_assembly import StepRecording, assemble_graph
from autosync.importing.operator_rules import fused_scans
from autosync.importing.recorder import Recorder, as_written, module_paths, storage_of
from autosync.importing.recording_devices import (
    FakeTensors,
    MetaDevice,
    RecordingDevice,
    copied_module,
)
from autosync.importing.several_examples import Examples, RecordedGraph, each_example, united_graph
from autosync.importing.training_step import (
    Inputs,
    Loss,
    check_arguments,
    check_inputs,
    compute_loss,
    has_batch_size,
    input_tensors,
    resize_batch,
    warn_of_eval_mode,
)
from autosync.torch_dtypes import DTYPE_NAMES


def import_module(
    module_or_factory: nn.Module | Callable[[], nn.Module],
    example_inputs: object,
    loss: Loss | None,
    *,
    name: str,
    batch_size: int,
    values: bool = False,
    autocast: torch.dtype | None = None,
) -> ModelGraph:
    """The dataflow graph of one training step, recorded from a real forward and backward pass on
    tensors without memory: no weight is allocated, and a given module is not touched.

    example_inputs: a tuple of positional arguments or a dict of keyword arguments: tensors, plain
        values, and containers of them. Where the module's control flow depends on them: several
        such, as `Examples`; the graph then has what any of them ran, and says in how many.
    loss: `(outputs, *inputs) -> scalar`, or `(outputs, **inputs)` where inputs are keywords; None
        when the module returns the loss (as it is, as `loss` of its outputs, or as their first).
        `compute_loss` says which inputs the module then gets.
    batch_size: of the example inputs.
    values: where the step depends on values, run it on the CPU with a copy of the module and with
        the example inputs; all that it computes stays in memory until then.
    autocast: record the forward pass under `torch.autocast` of this type. Which operations it
        lowers are those of the CPU's list.

    Warns where the loss does not reach a trainable parameter, and where a given module is in eval
    mode, in which it is then recorded.

    Raises:
        NotTraceable: names the module, the operation and the line of code that cannot be recorded,
            and the way out.
        InvalidInput: example_inputs is none of these.
    """
    if isinstance(module_or_factory, nn.Module):
        warn_of_eval_mode(module_or_factory)
    examples = each_example(example_inputs)
    recorded = [
        _recorded_on_any(
            module_or_factory,
            example,
            loss,
            f"{name}, example {number} of {len(examples)}" if len(examples) > 1 else name,
            batch_size,
            values,
            autocast,
        )
        for number, example in enumerate(examples, 1)
    ]
    missing = frozenset.intersection(*(each.unreached for each in recorded))
    if isinstance(example_inputs, Examples):
        graph = united_graph(recorded, name)
    else:
        graph = recorded[0].graph
    if missing:
        ordered = [v.name for v in graph.variables if v.name in missing]
        warnings.warn(refusals.without_gradient(name, ordered), stacklevel=2)
    return graph


def _recorded_on_any(
    module_or_factory: nn.Module | Callable[[], nn.Module],
    example_inputs: object,
    loss: Loss | None,
    name: str,
    batch_size: int,
    values: bool,
    autocast: torch.dtype | None,
) -> RecordedGraph:
    """Without memory where that can be, else with values where the user allows it."""
    inputs = check_inputs(example_inputs, name)
    if batch_size < 1 or not has_batch_size(inputs, batch_size):
        shapes = [tuple(value.shape) for value in input_tensors(inputs)]
        raise refusals.no_batch(name, batch_size, shapes)
    if autocast is None:  # the meta device has none
        with suppress(NotTraceable):  # for a reason that only the meta device knows, perhaps
            return _recorded(MetaDevice(), module_or_factory, inputs, loss, name, batch_size)
    fake, real = FakeTensors(autocast), RecordingDevice(autocast)
    if not values:
        return _recorded(fake, module_or_factory, inputs, loss, name, batch_size)
    with suppress(NotTraceable):
        return _recorded(fake, module_or_factory, inputs, loss, name, batch_size)
    with torch.random.fork_rng(devices=()):
        return _recorded(real, module_or_factory, inputs, loss, name, batch_size)


def _recorded(
    device: RecordingDevice,
    module_or_factory: nn.Module | Callable[[], nn.Module],
    inputs: Inputs,
    loss: Loss | None,
    name: str,
    batch_size: int,
) -> RecordedGraph:
    if device.has_values and _lacks_values(module_or_factory, inputs):
        raise refusals.no_values(name)
    module = copied_module(module_or_factory, device, name)
    check_arguments(module, inputs, loss, name)
    trainable = {key: value for key, value in module.named_parameters() if value.requires_grad}
    if not trainable:
        raise refusals.no_parameters(name)
    for key, value in trainable.items():
        if value.dtype not in DTYPE_NAMES:
            raise refusals.other_dtype(name, key, value.dtype, tuple(DTYPE_NAMES.values()))
    first = resize_batch(inputs, batch_size, 1, device)
    recording = _record(module, first, loss, name, trainable, device)
    doubled = None
    if not device.has_values:
        second = resize_batch(inputs, batch_size, 2, device)
        doubled = _shapes(module, second, loss, recording.recorder, device)
    graph = assemble_graph(recording, doubled, name, batch_size)
    frozen = [each for each in module.parameters() if not each.requires_grad]
    frozen_bytes = sum(each.numel() * each.element_size() for each in frozen)
    return RecordedGraph(replace(graph, frozen_bytes=frozen_bytes), recording.unreached)


def _lacks_values(given: nn.Module | Callable[[], nn.Module], inputs: Inputs) -> bool:
    tensors = input_tensors(inputs)
    if isinstance(given, nn.Module):
        tensors += [*given.parameters(), *given.buffers()]
    return any(tensor.device.type == "meta" for tensor in tensors)


def _record(
    module: nn.Module,
    inputs: Inputs,
    loss: Loss | None,
    name: str,
    trainable: dict[str, nn.Parameter],
    device: RecordingDevice,
) -> StepRecording:
    recorder = Recorder(list(trainable.values()), device)
    with _recording(device, recorder), device.precision(), torch.enable_grad():
        value = _forward(module, inputs, loss, name, recorder)
    _check_loss(value, name)
    if mixed := _mixed_tables(module, recorder):
        for table in mixed:
            table.sparse = False
        return _record(module, inputs, loss, name, trainable, device)
    recorder.start_backward()
    recording = StepRecording(recorder, trainable, recorder.writer_of(value))
    recording.watch(value)
    try:
        with _recording(device, recorder):
            value.backward()
    except Exception as error:  # the user's own autograd functions may raise anything
        raise refusals.failed_call(
            name, "backward", recorder.backward_call_site(), error, len(recorder.names)
        ) from None
    recording.close()
    return recording


@contextmanager
def _recording(device: RecordingDevice, recorder: Recorder) -> Iterator[None]:
    scans = nullcontext() if device.has_values else fused_scans()
    with device.active(), FusedAttention(), scans, as_written(), recorder:
        yield


def _mixed_tables(module: nn.Module, recorder: Recorder) -> list[nn.Embedding | nn.EmbeddingBag]:
    """Sparse embeddings whose table something else consumes too: their gradient is a sum with a
    dense one, hence dense, and the meta device cannot form that sum."""
    variables = recorder.variable_of
    dense = {
        variable
        for kind, record in zip(recorder.types, recorder.records, strict=True)
        if kind != "embedding_renorm_"  # of max_norm, which scales rows and has no gradient
        for variable in record.variables - {table for table, _ in record.lookups}
    }
    return [
        part
        for part in module.modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag)
        and part.sparse
        and variables.get(storage_of(part.weight)) in dense
    ]


def _forward(
    module: nn.Module, inputs: Inputs, loss: Loss | None, name: str, recorder: Recorder
) -> Any:
    def in_loss() -> None:
        recorder.path = refusals.LOSS_PATH

    try:
        with module_paths(module, recorder):
            return compute_loss(module, inputs, loss, in_loss)
    except Exception as error:  # the user's own code may raise anything
        raise refusals.failed_call(
            name, "forward", (recorder.path, recorder.call[1]), error, len(recorder.names)
        ) from None


def _check_loss(value: Any, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise refusals.no_scalar_loss(name, _in_words(value))
    if value.numel() != 1:
        raise refusals.no_scalar_loss(name, f"a tensor of shape {tuple(value.shape)}")
    if not value.requires_grad:
        raise refusals.no_scalar_loss(name, "a loss that does not depend on the parameters")


def _in_words(value: Any) -> str:
    kind = f"a {type(value).__name__}"
    if isinstance(value, Mapping) and value:
        return f"{kind} of {', '.join(map(repr, list(value)[:6]))}"
    return kind


def _shapes(
    module: nn.Module,
    inputs: Inputs,
    loss: Loss | None,
    first: Recorder,
    device: RecordingDevice,
) -> list[tuple[int, ...]] | None:
    """Every operation's output shape at another batch size; None where that cannot be had."""
    recorder = Recorder([], device)
    try:
        with _recording(device, recorder), device.precision(), torch.enable_grad():
            _forward(module, inputs, loss, "", recorder)
    except NotTraceable:  # the module may insist on its batch size; see `assemble_graph`
        return None
    if recorder.names != first.names:
        return None
    return [record.shape for record in recorder.records]
