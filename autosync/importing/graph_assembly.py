"""Turns a recording into a ModelGraph."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from autosync.graph import ModelGraph, Operation, Variable
from autosync.importing.recorder import Record, Recorder
from autosync.torch_dtypes import DTYPE_NAMES


@dataclass(slots=True)
class StepRecording:
    """One recorded step.

    loss_operation: the operation that made the loss, None when it is a bare parameter.
    ready: for each variable, in the order the gradients became ready, the operation whose backward
    was running (None for those without a gradient: they come last). unreached: these, once the
    step has ended.
    """

    recorder: Recorder
    parameters: dict[str, nn.Parameter]
    loss_operation: int | None
    ready: dict[str, int | None] = field(default_factory=dict)
    unreached: frozenset[str] = frozenset()

    def watch(self, loss: torch.Tensor) -> None:
        """Note when every autograd node runs and when every gradient is complete."""
        seen = {loss.grad_fn}
        waiting = [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is None or node.name() == "torch::autograd::AccumulateGrad":
                continue
            node.register_prehook(self._runs(node._sequence_nr()))
            for following, _ in node.next_functions:
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
        for name, parameter in self.parameters.items():
            parameter.register_post_accumulate_grad_hook(self._is_ready(name))

    def close(self) -> None:
        """At the end of the step: no further gradient comes."""
        missing = [name for name in self.parameters if name not in self.ready]
        self.unreached = frozenset(missing)
        self.ready.update(dict.fromkeys(missing))

    def _runs(self, number: int) -> Callable[[object], None]:
        def hook(_: object) -> None:
            self.recorder.nodes_run.append(number)

        return hook

    def _is_ready(self, name: str) -> Callable[[object], None]:
        def hook(_: object) -> None:
            # A parameter used by a re-entrant backward becomes ready again: the last time counts.
            self.ready.pop(name, None)
            self.ready[name] = self.recorder.latest_backward

        return hook

    def backward_position(self) -> dict[int, int]:
        """When each operation's backward ended, as a position among all nodes that ran."""
        position: dict[int, int] = {}
        for index, node in enumerate(self.recorder.nodes_run):
            operation = self.recorder.node_operation.get(node)
            if operation is not None:
                position[operation] = index
        return position


def assemble_graph(
    recording: StepRecording, doubled: list[tuple[int, ...]] | None, name: str, batch_size: int
) -> ModelGraph:
    """doubled: output shapes at twice the batch size. An output has the batch dimension when its
    shape changes; where the module cannot run at that size, when a dimension is a multiple of the
    batch size.
    """
    recorder, position = recording.recorder, recording.backward_position()
    relevant = _relevant_operations(recording, position)
    index = {operation: i for i, operation in enumerate(relevant)}
    operations = tuple(
        _operation(recorder, operation, index, _batched(recorder, operation, doubled, batch_size))
        for operation in relevant
    )
    # Operations without backward (masks, constants) take no time there: they close the list.
    with_backward = sorted((op for op in relevant if op in position), key=position.__getitem__)
    without = [op for op in reversed(relevant) if op not in position]
    variables = list(recording.parameters)
    after = {key: _completed_by(recording, i, position) for i, key in enumerate(variables)}
    return ModelGraph(
        name=name,
        batch_size=batch_size,
        operations=operations,
        variables=tuple(
            _variable(key, value, i, recorder.records)
            for i, (key, value) in enumerate(recording.parameters.items())
        ),
        backward_order=tuple(index[op] for op in with_backward + without),
        gradient_order=tuple(variables.index(key) for key in recording.ready),
        gradient_after=tuple(index[after[key]] for key in variables),
    )


def _relevant_operations(recording: StepRecording, position: dict[int, int]) -> list[int]:
    """Operations that lead to the loss, run in backward or have FLOPs; an update of a buffer that
    only counts batches is none of these."""
    records = recording.recorder.records
    needed = set(position)
    needed.update(i for i, r in enumerate(records) if r.forward_flops or r.backward_flops)
    needed.update(op for op in recording.ready.values() if op is not None)
    waiting = list(needed)
    if recording.loss_operation is not None:
        waiting.append(recording.loss_operation)
    while waiting:
        operation = waiting.pop()
        needed.add(operation)
        waiting.extend(records[operation].inputs - needed)
    return sorted(needed)


def _operation(
    recorder: Recorder, operation: int, index: dict[int, int], batched: bool
) -> Operation:
    record = recorder.records[operation]
    return Operation(
        name=recorder.names[operation],
        type=recorder.types[operation],
        forward_flops=record.forward_flops,
        backward_flops=record.backward_flops,
        output_bytes=record.output_bytes,
        has_batch_dimension=batched,
        inputs=tuple(sorted(index[i] for i in record.inputs)),
        variables=tuple(sorted(record.variables)),
        dtype=record.dtype,
    )


def _batched(
    recorder: Recorder, operation: int, doubled: list[tuple[int, ...]] | None, batch_size: int
) -> bool:
    shape = recorder.records[operation].shape
    if doubled is not None:
        return doubled[operation] != shape
    return any(size and size % batch_size == 0 for size in shape)


def _completed_by(recording: StepRecording, variable: int, position: dict[int, int]) -> int:
    """The last consumer in backward order."""
    consumers = [
        operation
        for operation, record in enumerate(recording.recorder.records)
        if variable in record.variables and operation in position
    ]
    if consumers:
        return max(consumers, key=position.__getitem__)
    # Consumed only where autograd makes no node of its own: the operation that ran just then.
    running = recording.ready[list(recording.parameters)[variable]]
    # Without a gradient: that is known at the end of backward.
    return running if running is not None else max(position, key=position.__getitem__)


def _variable(name: str, parameter: nn.Parameter, variable: int, records: list[Record]) -> Variable:
    gradient = parameter.grad
    sparse = gradient is not None and gradient.layout == torch.sparse_coo
    touched = 0
    if sparse:
        # Lookups touch at most one row for each index; other sparse gradients may touch any row.
        rows = sum(count for record in records for i, count in record.lookups if i == variable)
        touched = min(rows or int(parameter.shape[0]), int(parameter.shape[0]))
    return Variable(
        name=name,
        shape=tuple(parameter.shape),
        dtype=DTYPE_NAMES[parameter.dtype],
        sparse=sparse,
        touched_rows=touched,
        factor_rows=_factor_rows(variable, records),
    )


def _factor_rows(variable: int, records: list[Record]) -> int:
    consumers = [record for record in records if variable in record.variables]
    if len(consumers) != 1:
        return 0
    rows = [count for consumed, count in consumers[0].products if consumed == variable]
    return rows[0] if len(rows) == 1 else 0
