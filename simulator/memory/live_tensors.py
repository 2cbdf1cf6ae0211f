"""Bytes that live at each moment of an iteration: activations, their gradients, those of variables.

Autograd's own rules, storage by storage: an output lives until nothing reads it any more and no
operation keeps it; the gradient of an output from its first contribution until its own backward,
where a second contribution is added in place if nobody else holds the first
(torch/csrc/autograd/input_buffer.cpp). Which outputs an operation keeps, and whose storage it
writes into, is from torch's tools/autograd/derivatives.yaml and the operators themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autosync.graph import ITEM_BYTES, ModelGraph, Operation
from autosync.profiling import MATRIX_PRODUCTS, reach_variables

F64 = NDArray[np.float64]

Keeps = Literal["factors", "inputs", "output", "inputs and output", "nothing"]
"""factors: an input is kept where another input, or a variable, needs a gradient."""

KEEPS: dict[str, Keeps] = {
    **dict.fromkeys(("addmm", "mm", "bmm", "baddbmm", "linear", "matmul"), "factors"),
    "convolution": "factors",
    **dict.fromkeys(("mul", "mul_", "div", "masked_fill", "masked_fill_", "where"), "factors"),
    **dict.fromkeys(("native_batch_norm", "native_layer_norm", "native_group_norm"), "inputs"),
    **dict.fromkeys(("avg_pool2d", "_adaptive_avg_pool2d", "max_pool2d_with_indices"), "inputs"),
    **dict.fromkeys(("gelu", "silu", "log", "sin", "cos", "pow", "rsqrt", "abs"), "inputs"),
    **dict.fromkeys(("hardswish", "hardtanh", "leaky_relu", "softplus", "elu"), "inputs"),
    **dict.fromkeys(("nll_loss_forward", "binary_cross_entropy_with_logits", "mse_loss"), "inputs"),
    **dict.fromkeys(("relu", "relu_", "tanh", "sigmoid", "exp", "sqrt", "hardtanh_"), "output"),
    **dict.fromkeys(("_softmax", "_log_softmax"), "output"),
    **dict.fromkeys(("add", "add_", "sub", "sub_", "rsub", "neg", "cat", "stack"), "nothing"),
    **dict.fromkeys(("clone", "copy_", "_to_copy", "sum", "mean", "div_", "bernoulli_"), "nothing"),
    **dict.fromkeys(("triu", "tril", "embedding", "index", "gather", "index_select"), "nothing"),
    **dict.fromkeys(("native_dropout", "constant_pad_nd", "roll", "flip", "repeat"), "nothing"),
}  # fmt: skip
"""Operations that are not listed keep inputs and output, the most that there can be."""

KEPT_APART = {"max_pool2d_with_indices": 2 / 3, "native_dropout": 1 / 5}
"""Share of the output's bytes that its own backward alone reads: int64 indices beside float32
values, a mask of a byte beside each."""

FRESH = frozenset({"bernoulli_", "copy_", "fill_", "zero_", "normal_", "uniform_"})
"""Written in place, but into a tensor that was allocated for it."""

PASSES_GRADIENT = frozenset({"add", "add_", "sub", "clone", "cat", "stack", "sum"})
"""The gradient of an input is that of the output, or a view of it."""


@dataclass(frozen=True, slots=True)
class Storages:
    """Of each operation. root: the operation whose output's storage its own output lies in. keeps:
    roots of the storages that it keeps for its backward. read_bytes: of its output, what other
    operations read; apart_bytes: what only its backward reads."""

    root: tuple[int, ...]
    keeps: tuple[tuple[int, ...], ...]
    read_bytes: tuple[float, ...]
    apart_bytes: tuple[float, ...]


def storages_of(graph: ModelGraph, trained: list[bool], on_gpu: bool) -> Storages:
    """trained: whether backward passes through each operation. on_gpu: dropout draws a mask of a
    byte an element there; on a CPU it is of the output's type."""
    root: list[int] = []
    keeps: list[tuple[int, ...]] = []
    read, apart = [], []
    for index, operation in enumerate(graph.operations):
        root.append(_root(graph, operation, index, root))
        kept = _kept(operation, index, trained) if trained[index] else ()
        keeps.append(tuple(dict.fromkeys(root[i] for i in kept)))
        size = float(operation.output_bytes)
        if on_gpu and operation.type == "bernoulli_":
            size /= ITEM_BYTES[operation.dtype]
        share = KEPT_APART.get(operation.type, 0.0)
        apart.append(size * share)
        read.append(size - apart[-1])
    return Storages(tuple(root), tuple(keeps), tuple(read), tuple(apart))


def _root(graph: ModelGraph, operation: Operation, index: int, root: list[int]) -> int:
    if not operation.type.endswith("_") or operation.type in FRESH:
        return index
    size = operation.output_bytes
    alike = [i for i in operation.inputs if graph.operations[i].output_bytes == size]
    return root[alike[-1]] if alike else index


def _kept(operation: Operation, index: int, trained: list[bool]) -> tuple[int, ...]:
    inputs = operation.inputs
    match KEEPS.get(operation.type, "inputs and output"):
        case "factors":
            needing = sum(trained[i] for i in inputs) + bool(operation.variables)
            return tuple(i for i in inputs if needing > trained[i])
        case "inputs":
            return inputs
        case "output":
            return (index,)
        case "inputs and output":
            return (*inputs, index)
    return ()


def keeps_values(graph: ModelGraph, index: int, trained: list[bool]) -> bool:
    """Whether an operation keeps the values of its variables for its backward. trained: as
    `storages_of` has it."""
    operation = graph.operations[index]
    match KEEPS.get(operation.type, "inputs and output"):
        case "factors":
            return any(trained[i] for i in operation.inputs)
        case "output" | "nothing":
            return False
    return True


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


STRATEGIES = 256
"""Whose gradients are held together; bounds memory."""


def living_bytes(curve: ActivationCurve, sizes: F64) -> F64:
    """Activations and gradients that stay from their making to the end, `(2, moments)`, without and
    with batch dimension.

    sizes: f64[V], of each variable's gradient.
    """
    held = curve.held.copy()
    begin = np.zeros(held.shape[1])
    np.add.at(begin, curve.gradient_from, sizes)
    held[0] += begin.cumsum()
    np.add.at(held[0], curve.made_at, _adding(curve) * sizes[curve.made_of])
    return held


def most_living(curve: ActivationCurve, sizes: F64, kept: NDArray[np.bool_], share: float) -> F64:
    """The most bytes of activations and gradients that live at a moment, `(n,)`.

    sizes, kept: as `gradients_at` has them. share: of the batch, over the even one.
    """
    activations = curve.held[0] + share * curve.held[1]
    most = np.empty(len(kept))
    for start in range(0, len(kept), STRATEGIES):
        rows = slice(start, start + STRATEGIES)
        most[rows] = (gradients_at(curve, sizes, kept[rows]) + activations).max(axis=1)
    return most


def gradients_at(curve: ActivationCurve, sizes: F64, kept: NDArray[np.bool_]) -> F64:
    """Bytes of gradients beside activations at each moment, `(n, moments)`.

    sizes: f64[V], of each variable's gradient. kept: `(n, V)`, whose gradients stay in tensors of
    their own; others go into a buffer as soon as they are whole. Those of a tied variable, which
    several operations make, are added up before.
    """
    in_parts = np.bincount(curve.made_of, minlength=len(sizes)) > 1
    last = curve.gradient_from.copy()
    np.maximum.at(last, curve.made_of, curve.made_at)
    change = np.zeros((len(kept), curve.held.shape[1] + 1))
    strategies = np.arange(len(kept))[:, None]
    np.add.at(change, (strategies, curve.gradient_from), np.where(kept | in_parts, sizes, 0.0))
    np.add.at(change, (strategies, last + 1), -np.where(in_parts & ~kept, sizes, 0.0))
    held: F64 = change.cumsum(axis=1)[:, :-1]
    tensors = np.where((kept | in_parts)[:, curve.made_of], _adding(curve), 1.0)
    np.add.at(held, (strategies, curve.made_at), tensors * sizes[curve.made_of])
    return held


def _adding(curve: ActivationCurve) -> F64:
    """`(K,)`: tensors that each making needs beside the gradient so far. The first needs none; one
    that is added to an earlier needs one, and another where their sum is a tensor of its own."""
    again = curve.made_at > curve.gradient_from[curve.made_of]
    return again * (1.0 + curve.summed_apart)
