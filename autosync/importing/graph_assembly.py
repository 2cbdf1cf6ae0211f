"""Turns a recording into a ModelGraph."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from autosync.graph import DType, ModelGraph, Operation, Variable
from autosync.importing.recorder import Record, Recorder
from autosync.torch_dtypes import DTYPE_NAMES

LOOP = "loop"
"""The type of an operation that stands for all iterations of a loop. Its output is that of all
iterations, since backward reads it."""
MIN_ITERATIONS, MAX_BODY = 64, 128
"""A loop becomes one operation if it has so many iterations, of at most so many operations each."""
Label = tuple[str, str, tuple[int, ...], DType]
"""Module path, type, shape and dtype: the same in every iteration of a loop."""


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
    groups = _groups(recorder, _relevant_operations(recording, position))
    index = {member: i for i, group in enumerate(groups) for member in group}
    names: Counter[str] = Counter()
    operations = tuple(
        _operation(
            recorder,
            group,
            index,
            any(_batched(recorder, member, doubled, batch_size) for member in group),
            names,
        )
        for group in groups
    )
    ends = [max((position[op] for op in group if op in position), default=-1) for group in groups]
    # Operations without backward (masks, constants) take no time there: they close the list.
    with_backward = sorted((i for i, end in enumerate(ends) if end >= 0), key=ends.__getitem__)
    without = [i for i in reversed(range(len(groups))) if ends[i] < 0]
    variables = {key: number for number, key in enumerate(recording.parameters)}
    consumers = _consumers(recorder.records, len(variables))
    after = {
        key: _completed_by(recording, key, consumers[i], position) for key, i in variables.items()
    }
    return ModelGraph(
        name=name,
        batch_size=batch_size,
        operations=operations,
        variables=tuple(
            _variable(key, value, i, [recorder.records[op] for op in consumers[i]])
            for i, (key, value) in enumerate(recording.parameters.items())
        ),
        backward_order=tuple(with_backward + without),
        gradient_order=tuple(variables[key] for key in recording.ready),
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


def _groups(recorder: Recorder, relevant: list[int]) -> list[list[int]]:
    """The recorded operations that make up each operation of the graph: a single one, or all of a
    loop (over tokens, say), whose iterations repeat the same operations."""
    labels = [
        (recorder.paths[op], recorder.types[op], record.shape, record.dtype)
        for op, record in ((op, recorder.records[op]) for op in relevant)
    ]
    again = [len(labels)] * len(labels)
    seen: dict[object, int] = {}
    for place in reversed(range(len(labels))):
        again[place] = seen.get(labels[place], len(labels))
        seen[labels[place]] = place
    groups, place = [], 0
    while place < len(labels):
        length = _loop_length(labels, again, place)
        groups.append(relevant[place : place + length])
        place += length
    return groups


def _loop_length(labels: list[Label], again: list[int], start: int) -> int:
    """How many operations the loop that begins here has in all; 1 where none begins. again: the
    next place of each place's label."""
    second = again[start]
    while second < len(labels) and second - start <= MAX_BODY:
        period, end = second - start, second
        while end < len(labels) and labels[end] == labels[end - period]:
            end += 1
        iterations = (end - start) // period
        if iterations >= MIN_ITERATIONS:
            return iterations * period
        second = again[second]
    return 1


def _operation(
    recorder: Recorder,
    group: list[int],
    index: dict[int, int],
    batched: bool,
    names: Counter[str],
) -> Operation:
    """names: how many loops of each name there are so far."""
    records = [recorder.records[member] for member in group]
    name, kind = recorder.names[group[0]], recorder.types[group[0]]
    if len(group) > 1:
        path, kind = _common_path([recorder.paths[member] for member in group]), LOOP
        name = f"{path}.{kind}" if path else kind
        names[name] += 1
        name += f":{names[name]}" if names[name] > 1 else ""
    own = index[group[0]]
    return Operation(
        name=name,
        type=kind,
        forward_flops=sum(record.forward_flops for record in records),
        backward_flops=sum(record.backward_flops for record in records),
        output_bytes=sum(record.output_bytes for record in records),
        has_batch_dimension=batched,
        inputs=tuple(sorted({index[i] for record in records for i in record.inputs} - {own})),
        variables=tuple(sorted({v for record in records for v in record.variables})),
        dtype=records[0].dtype,
    )


def _common_path(paths: list[str]) -> str:
    parts = zip(*(path.split(".") for path in dict.fromkeys(paths)), strict=False)
    return ".".join(first for first, *others in parts if all(each == first for each in others))


def _batched(
    recorder: Recorder, operation: int, doubled: list[tuple[int, ...]] | None, batch_size: int
) -> bool:
    shape = recorder.records[operation].shape
    if doubled is not None:
        return doubled[operation] != shape
    return any(size and size % batch_size == 0 for size in shape)


def _consumers(records: list[Record], variables: int) -> list[list[int]]:
    """The operations that consume each variable."""
    found: list[list[int]] = [[] for _ in range(variables)]
    for operation, record in enumerate(records):
        for variable in record.variables:
            found[variable].append(operation)
    return found


def _completed_by(
    recording: StepRecording, name: str, consumers: list[int], position: dict[int, int]
) -> int:
    """The last consumer in backward order."""
    with_backward = [operation for operation in consumers if operation in position]
    if with_backward:
        return max(with_backward, key=position.__getitem__)
    # Consumed only where autograd makes no node of its own: the operation that ran just then.
    running = recording.ready[name]
    # Without a gradient: that is known at the end of backward.
    return running if running is not None else max(position, key=position.__getitem__)


def _variable(
    name: str, parameter: nn.Parameter, variable: int, consumers: list[Record]
) -> Variable:
    gradient = parameter.grad
    sparse = gradient is not None and gradient.layout == torch.sparse_coo
    touched = 0
    if sparse:
        # Lookups touch at most one row for each index; other sparse gradients may touch any row.
        rows = sum(count for record in consumers for i, count in record.lookups if i == variable)
        touched = min(rows or int(parameter.shape[0]), int(parameter.shape[0]))
    return Variable(
        name=name,
        shape=tuple(parameter.shape),
        dtype=DTYPE_NAMES[parameter.dtype],
        sparse=sparse,
        touched_rows=touched,
        factor_rows=_factor_rows(variable, consumers),
    )


def _factor_rows(variable: int, consumers: list[Record]) -> int:
    if len(consumers) != 1:
        return 0
    rows = [count for consumed, count in consumers[0].products if consumed == variable]
    return rows[0] if len(rows) == 1 else 0
