"""Which tensors of a training step lie idle, and when: activations between their forward and their
backward uses, the state of optimizers between updates, and values of variables between all these.

Moments are those of `memory.live_tensors`: the forward of each operation, then the backward passes
in their order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.offload.idle_spans import SMALLEST_BYTES, IdleSpans, spans_of
from autosync.graph import ModelGraph
from autosync.profiling import reach_variables
from autosync.simulator.memory.live_tensors import Storages, keeps_values, storages_of


@dataclass(frozen=True, slots=True)
class IdleActivations:
    """Of S spans. batched bool[S]: whether the tensor has the batch dimension; sizes of such are
    those at an even share."""

    spans: IdleSpans
    batched: NDArray[np.bool_]

    def at(self, batch_scale: float) -> IdleSpans:
        """At so many times the graph's batch, those that are worth a transfer."""
        sizes = self.spans.size_bytes * np.where(self.batched, batch_scale, 1.0)
        worth = sizes >= SMALLEST_BYTES
        all_spans = self.spans
        return IdleSpans(
            size_bytes=sizes[worth],
            tensor=all_spans.tensor[worth],
            final=all_spans.final[worth],
            begin=all_spans.begin[worth],
            end=all_spans.end[worth],
        )


def idle_activations(graph: ModelGraph, on_gpu: bool) -> IdleActivations:
    """on_gpu: as `storages_of` has it."""
    count = len(graph.operations)
    backward_at = _backward_moments(graph)
    trained = reach_variables(graph)
    storages = storages_of(graph, trained, on_gpu)
    rows: list[tuple[float, int, int, int, int]] = []
    uses = _forward_and_backward_uses(graph, storages, backward_at)
    for root, (last_forward, backward) in uses.items():
        final, before = last_forward.written + 1, last_forward.read
        for moment in backward:
            rows.append((storages.read_bytes[root], root, final, before + 1, moment))
            final = before = moment
    for index, size in enumerate(storages.apart_bytes):
        if trained[index] and size:
            rows.append((size, count + index, index + 1, index + 1, int(backward_at[index])))
    return _table(rows, graph)


@dataclass(slots=True)
class _Forward:
    """The last operations that write and read a storage."""

    written: int
    read: int


def _forward_and_backward_uses(
    graph: ModelGraph, storages: Storages, backward_at: NDArray[np.int64]
) -> dict[int, tuple[_Forward, list[int]]]:
    """Of each storage, by its root."""
    forward: dict[int, _Forward] = {}
    backward: dict[int, set[int]] = {}
    for index, operation in enumerate(graph.operations):
        root = storages.root[index]
        forward[root] = _Forward(index, index)
        for source in operation.inputs:
            forward[storages.root[source]].read = index
        for kept in storages.keeps[index]:
            backward.setdefault(kept, set()).add(int(backward_at[index]))
    return {root: (forward[root], sorted(moments)) for root, moments in backward.items()}


def _table(rows: list[tuple[float, int, int, int, int]], graph: ModelGraph) -> IdleActivations:
    spans, count = spans_of(rows), len(graph.operations)
    made_by = [graph.operations[tensor % count] for tensor in spans.tensor.tolist()]
    batched = np.array([operation.has_batch_dimension for operation in made_by], dtype=np.bool_)
    return IdleActivations(spans, batched)


def idle_states(domain: Domain) -> IdleSpans:
    """Of an optimizer that updates within `step()`, on a rank that updates every variable whole.
    Moments are those of `idle_activations` and, last, that step, which needs all of it."""
    step = 2 * len(domain.graph.operations)
    sizes = np.repeat(domain.variables.size_bytes, domain.optimizer.state_tensors).tolist()
    worth = (size for size in sizes if size >= SMALLEST_BYTES)
    return spans_of([(float(size), place, 0, 0, step) for place, size in enumerate(worth)])


def idle_values(domain: Domain) -> IdleSpans:
    """Of variables that each rank holds and updates whole. A value is read by the forward of what
    consumes it, by the backward of what keeps it for that, and by the step; it may leave where the
    forward pass begins. Moments are those of `idle_states`."""
    graph, count = domain.graph, len(domain.graph.operations)
    backward_at = _backward_moments(graph)
    trained = reach_variables(graph)
    rows: list[tuple[float, int, int, int, int]] = []
    for variable, consumers in enumerate(graph.consumers()):
        size = float(graph.variables[variable].size_bytes)
        if size < SMALLEST_BYTES:
            continue
        kept = [int(backward_at[i]) for i in consumers if keeps_values(graph, i, trained)]
        begin = 0
        for use in (*consumers, *sorted(kept), 2 * count):
            rows.append((size, variable, 0, begin, use))
            begin = use + 1
    return spans_of(rows)


def _backward_moments(graph: ModelGraph) -> NDArray[np.int64]:
    """Of each operation's backward."""
    count = len(graph.operations)
    found = np.empty(count, dtype=np.int64)
    found[list(graph.backward_order)] = count + np.arange(count)
    return found
