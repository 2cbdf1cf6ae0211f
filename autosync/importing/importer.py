"""import_module: one recorded training step becomes a ModelGraph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.importing import refusals
from autosync.importing.graph_assembly import StepRecording, assemble_graph
from autosync.importing.meta_copies import (
    Inputs,
    Loss,
    check_arguments,
    check_inputs,
    compute_loss,
    meta_inputs,
    meta_module,
)
from autosync.importing.recorder import Recorder
from autosync.importing.tracker import LOSS_PATH, module_paths, on_meta, storage_of
from autosync.torch_dtypes import DTYPE_NAMES


def import_module(
    module_or_factory: nn.Module | Callable[[], nn.Module],
    example_inputs: Inputs,
    loss: Loss | None,
    *,
    name: str,
    batch_size: int,
) -> ModelGraph:
    """The dataflow graph of one training step, recorded from a real forward and backward pass on
    the meta device: no weight is allocated, and a given module is not touched.

    loss: `(outputs, *inputs) -> scalar`; None when the module returns the loss (it then gets all
        inputs, otherwise the leading ones that its `forward` requires).
    batch_size: of the example inputs.

    Raises:
        NotTraceable: names the module and operation that cannot be recorded, and the way out.
        InvalidInput: example_inputs is no tuple of tensors.
    """
    inputs = check_inputs(example_inputs, name)
    shapes = [tuple(value.shape) for value in inputs]
    if batch_size < 1 or not any(batch_size in shape for shape in shapes):
        raise refusals.no_batch(name, batch_size, shapes)
    module = meta_module(module_or_factory, name)
    check_arguments(module, inputs, loss, name)
    trainable = {key: value for key, value in module.named_parameters() if value.requires_grad}
    if not trainable:
        raise refusals.no_parameters(name)
    for key, value in trainable.items():
        if value.dtype not in DTYPE_NAMES:
            raise refusals.other_dtype(name, key, value.dtype, tuple(DTYPE_NAMES.values()))
    recording = _record(module, meta_inputs(inputs, batch_size), loss, name, trainable)
    doubled = _shapes(module, meta_inputs(inputs, batch_size, factor=2), loss, recording.recorder)
    return assemble_graph(recording, doubled, name, batch_size)


def _record(
    module: nn.Module,
    inputs: Inputs,
    loss: Loss | None,
    name: str,
    trainable: dict[str, nn.Parameter],
) -> StepRecording:
    recorder = Recorder(list(trainable.values()))
    with on_meta(), torch.enable_grad(), recorder:
        value = _forward(module, inputs, loss, name, recorder)
    _check_loss(value, name)
    if mixed := _mixed_tables(module, recorder):
        for table in mixed:
            table.sparse = False
        return _record(module, inputs, loss, name, trainable)
    recorder.start_backward()
    recording = StepRecording(recorder, trainable, recorder.writer_of(value))
    recording.watch(value)
    try:
        with on_meta(), recorder:
            value.backward()
    except Exception as error:  # the user's own autograd functions may raise anything
        raise refusals.failed_call(
            name, "backward", recorder.call, error, len(recorder.names)
        ) from None
    if missing := [key for key in trainable if key not in recording.ready]:
        raise refusals.no_gradient(name, missing)
    return recording


def _mixed_tables(module: nn.Module, recorder: Recorder) -> list[nn.Embedding | nn.EmbeddingBag]:
    """Sparse embeddings whose table something else consumes too: their gradient is a sum with a
    dense one, hence dense, and the meta device cannot form that sum."""
    variables = recorder.variable_of
    dense = {v for r in recorder.records for v in r.variables - {table for table, _ in r.lookups}}
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
    def traced_loss(outputs: Any, *given: torch.Tensor) -> Any:
        recorder.path = LOSS_PATH
        return loss(outputs, *given) if loss else outputs

    try:
        with module_paths(module, recorder):
            return compute_loss(module, inputs, traced_loss if loss else None)
    except Exception as error:  # the user's own code may raise anything
        raise refusals.failed_call(
            name, "forward", (recorder.path, recorder.call[1]), error, len(recorder.names)
        ) from None


def _check_loss(value: Any, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise refusals.no_scalar_loss(name, f"a {type(value).__name__}")
    if value.numel() != 1:
        raise refusals.no_scalar_loss(name, f"a tensor of shape {tuple(value.shape)}")
    if not value.requires_grad:
        raise refusals.no_scalar_loss(name, "a loss that does not depend on the parameters")


def _shapes(
    module: nn.Module, inputs: Inputs, loss: Loss | None, first: Recorder
) -> list[tuple[int, ...]] | None:
    """Every operation's output shape at another batch size; None where that cannot be had."""
    recorder = Recorder([])
    try:
        with on_meta(), torch.enable_grad(), recorder:
            _forward(module, inputs, loss, "", recorder)
    except InvalidInput:
        raise
    except Exception:  # the module may insist on its batch size: assemble() then decides otherwise
        return None
    if recorder.names != first.names:
        return None
    return [record.shape for record in recorder.records]
