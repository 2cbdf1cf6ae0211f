"""Bytes that live at each moment of an iteration: activations, their gradients, those of variables.

Autograd's own rules, storage by storage: an output lives until nothing reads it any more and no
operation keeps it; the gradient of an output from its first contribution until its own backward,
where a second contribution is added in place if nobody else holds the first
(torch/csrc/autograd/input_buffer.cpp).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autosync.graph import ModelGraph
from autosync.profiling import MATRIX_PRODUCTS, reach_variables
from autosync.simulator.saved_tensors import PASSES_GRADIENT, Storages, storages_of


@dataclass(frozen=True, slots=True)
class ActivationCurve:
    """Of n operations: moment i is the forward of operation i, n + k the k-th backward.

    held f64[2 or more, 2n]: bytes of outputs and of their gradients, without and with batch
        dimension, at an even share; then those of operations with a row of their own.
    gradient_from i64[V]: the moment from which a variable's gradient lives.
    made_at, made_of i64[K]: the moment and the variable of each backward that makes a gradient of
        a variable, of a tied one several. summed_apart bool[K]: whether it is added to an earlier
        one into a third tensor.
    """

    held: NDArray[np.float64]
    gradient_from: NDArray[np.int64]
    made_at: NDArray[np.int64]
    made_of: NDArray[np.int64]
    summed_apart: NDArray[np.bool_]


def activation_curve(
    graph: ModelGraph, on_gpu: bool = False, rows: Sequence[int] | None = None
) -> ActivationCurve:
    """on_gpu: as `storages_of` has it. rows: of `held`, the one of each operation; by default 1
    with batch dimension and 0 without."""
    count = len(graph.operations)
    backward_at = np.empty(count, dtype=np.int64)
    backward_at[list(graph.backward_order)] = count + np.arange(count)
    trained = reach_variables(graph)
    storages = storages_of(graph, trained, on_gpu)
    lifetimes = _Lifetimes(
        graph, rows or [int(operation.has_batch_dimension) for operation in graph.operations]
    )
    _outputs(graph, storages, backward_at, trained, lifetimes)
    _gradients(graph, storages, backward_at, trained, lifetimes)
    consumers = graph.consumers()
    made_of = np.array([v for v, used in enumerate(consumers) for _ in used], dtype=np.int64)
    made_at = np.array([backward_at[i] for used in consumers for i in used], dtype=np.int64)
    first = backward_at[list(graph.gradient_after)]
    np.minimum.at(first, made_of, made_at)
    held = lifetimes.change.cumsum(axis=1)[:, :-1]
    apart = _summed_apart(graph, made_at, made_of)
    return ActivationCurve(held, first, made_at, made_of, apart)


def _summed_apart(
    graph: ModelGraph, made_at: NDArray[np.int64], made_of: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Of makings: the second of a tied variable whose first came from a matrix product. Autograd
    hands that over as a transposed view, into which it adds nothing (`can_accumulate_inplace` in
    input_buffer.cpp wants the only reference to a storage); into their sum it does."""
    found = np.zeros(len(made_at), dtype=np.bool_)
    made_by = np.array(graph.backward_order)[made_at - len(graph.operations)]
    for variable in np.flatnonzero(np.bincount(made_of) > 1):
        makings = np.flatnonzero(made_of == variable)
        earliest, second = makings[np.argsort(made_at[makings], kind="stable")][:2]
        found[second] = graph.operations[made_by[earliest]].type in MATRIX_PRODUCTS
    return found


def _outputs(
    graph: ModelGraph,
    storages: Storages,
    backward_at: NDArray[np.int64],
    trained: list[bool],
    lifetimes: "_Lifetimes",
) -> None:
    last = list(range(len(graph.operations)))
    for index, operation in enumerate(graph.operations):
        root = storages.root[index]
        last[root] = max(last[root], index)
        for source in operation.inputs:
            read = storages.root[source]
            last[read] = max(last[read], index)
        for kept in storages.keeps[index]:
            last[kept] = max(last[kept], int(backward_at[index]))
    for index, root in enumerate(storages.root):
        if root == index:
            lifetimes.add(index, storages.read_bytes[index], index, last[index])
        until = int(backward_at[index]) if trained[index] else index
        lifetimes.add(index, storages.apart_bytes[index], index, until)


def _gradients(
    graph: ModelGraph,
    storages: Storages,
    backward_at: NDArray[np.int64],
    trained: list[bool],
    lifetimes: "_Lifetimes",
) -> None:
    of_output: dict[int, _Buffer] = {}
    for index in graph.backward_order:
        if not trained[index]:
            continue
        operation, now = graph.operations[index], int(backward_at[index])
        own = of_output.pop(index, None)
        for source in (i for i in operation.inputs if trained[i]):
            size = storages.read_bytes[source]
            if own is not None and operation.type in PASSES_GRADIENT:
                coming = own
            else:
                coming = _Buffer(source, size, now)
            before = of_output.get(source)
            if before is None:
                coming.holders += 1
                of_output[source] = coming
            else:
                # A sum of its own; into what is only expanded (a scalar's gradient) nothing fits.
                if before.holders > 1 or before.size_bytes < size:
                    before.holders -= 1
                    if before.holders == 0:
                        lifetimes.end(before, now)
                    of_output[source] = _Buffer(source, size, now, holders=1)
                if coming is not own:
                    lifetimes.end(coming, now)
        if own is not None:
            own.holders -= 1
            if own.holders == 0:
                lifetimes.end(own, now)
    for left in of_output.values():
        lifetimes.end(left, lifetimes.moments - 1)


@dataclass(slots=True, eq=False)
class _Buffer:
    """A gradient's storage. operation: whose output it is the gradient of. holders: gradients that
    lie in it."""

    operation: int
    size_bytes: float
    since: int
    holders: int = 0


@dataclass(slots=True)
class _Lifetimes:
    """change f64[rows, moments + 1]: what begins to live at a moment, less what has ended before.
    rows: the row of each operation."""

    graph: ModelGraph
    rows: Sequence[int]
    change: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.change = np.zeros((max([1, *self.rows]) + 1, self.moments + 1))

    @property
    def moments(self) -> int:
        return 2 * len(self.graph.operations)

    def add(self, operation: int, size_bytes: float, first: int, last: int) -> None:
        """Lives from moment `first` to `last`, both included."""
        self.change[self.rows[operation], first] += size_bytes
        self.change[self.rows[operation], last + 1] -= size_bytes

    def end(self, buffer: _Buffer, now: int) -> None:
        self.add(buffer.operation, buffer.size_bytes, buffer.since, now)
