"""Kernels that stand for a graph's operations: which they are, and how they run on a CPU or a GPU.

An operation with FLOPs is a matrix product. Where it owns a matrix of `outputs` x `inputs` (a
linear layer, an attention projection, a convolution as its im2col product), the product is
[rows, inputs] @ [inputs, outputs], and its rows follow from its FLOPs, 2 * rows * inputs * outputs.
Where it owns none (attention scores), the product has as many results as the operation's output
has float32 elements. Backward is one product for each gradient, of the input and of the weight.

An operation without FLOPs (elementwise, normalisation, pooling, a lookup) reads and writes as many
bytes as the roofline of `autosync.profiling` says."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from autosync.graph import DType, ModelGraph, Operation, Variable
from autosync.profiling import backward_bytes, forward_bytes, reach_variables
from autosync.torch_dtypes import TORCH_DTYPES
from autosync.trials.worker.replay_compute import ReplayCompute, Stretch

MOST_ELEMENTS = 2**26
"""Of one operand (256 MB of float32). A larger kernel runs as several equal ones: an im2col matrix
that no convolution ever lays out would not fit beside the model."""

WIDEST_COLUMNS = 128
"""Of a product that no variable gives a shape: an attention head's width, or a tile's."""

Transposed = Literal["none", "left", "right"]


@dataclass(frozen=True, slots=True)
class Product:
    """`times` matrix products [rows, inner] @ [inner, columns]. transposed: which operand lies in
    memory as its transpose, as the weight does in forward and the output's gradient in the
    gradient of the weight."""

    rows: int
    inner: int
    columns: int
    dtype: DType = "float32"
    transposed: Transposed = "none"
    times: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inner * self.columns * self.times


@dataclass(frozen=True, slots=True)
class Sweep:
    """`times` elementwise kernels, each of which reads and writes `elements` of float32."""

    elements: int
    times: int = 1

    @property
    def moved_bytes(self) -> int:
        return 8 * self.elements * self.times


Kernel = Product | Sweep


@dataclass(frozen=True, slots=True)
class OperationKernels:
    """Of one operation, in the order in which they run."""

    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]


def graph_kernels(graph: ModelGraph, batch_factor: float = 1.0) -> tuple[OperationKernels, ...]:
    """The kernels of every operation of the graph; of one that not every iteration runs, as much
    less work as that is rarer.

    batch_factor: examples, as a multiple of the graph's batch.
    """
    reached = reach_variables(graph)
    return tuple(
        OperationKernels(
            _forward(graph, operation, batch_factor * operation.frequency),
            _backward(graph, operation, batch_factor * operation.frequency)
            if reached[index]
            else (),
        )
        for index, operation in enumerate(graph.operations)
    )


@dataclass(frozen=True, slots=True)
class _Matrix:
    """What an operation multiplies its rows with."""

    inputs: int
    outputs: int
    dtype: DType


def _forward(graph: ModelGraph, operation: Operation, batch_factor: float) -> tuple[Kernel, ...]:
    if not operation.forward_flops:
        return _sweep(forward_bytes(graph, operation) * batch_factor)
    matrix = _matrix(graph, operation)
    rows = _rows(operation.forward_flops * batch_factor, matrix)
    return (_by_rows(rows, matrix.inputs, matrix.outputs, matrix.dtype, "right"),)


def _backward(graph: ModelGraph, operation: Operation, batch_factor: float) -> tuple[Kernel, ...]:
    """Where backward has about the FLOPs of forward, one gradient is not needed: the first
    layer's input has none."""
    if not operation.forward_flops:
        return _sweep(backward_bytes(graph, operation) * batch_factor)
    flops = operation.backward_flops
    if not flops:
        return ()
    matrix = _matrix(graph, operation)
    both = flops >= 1.5 * operation.forward_flops
    rows = _rows(flops * batch_factor / (2 if both else 1), matrix)
    of_weight = _by_inner(matrix.outputs, rows, matrix.inputs, matrix.dtype)
    if not both:
        return (of_weight,)
    return _by_rows(rows, matrix.outputs, matrix.inputs, matrix.dtype, "none"), of_weight


def _matrix(graph: ModelGraph, operation: Operation) -> _Matrix:
    """The largest of the operation's matrices; without one, what leads to its output's size."""
    owned = [graph.variables[index] for index in operation.variables]
    matrices = [variable for variable in owned if len(variable.shape) >= 2]
    if matrices:
        largest: Variable = max(matrices, key=lambda variable: variable.elements)
        outputs = largest.shape[0]
        return _Matrix(largest.elements // outputs, outputs, largest.dtype)
    results = max(1, operation.output_bytes // 4)
    columns = min(WIDEST_COLUMNS, 2 ** int(math.log2(math.sqrt(results))))
    return _Matrix(max(1, round(operation.forward_flops / (2 * results))), columns, "float32")


def _rows(flops: float, matrix: _Matrix) -> int:
    return max(1, round(flops / (2 * matrix.inputs * matrix.outputs)))


def _by_rows(rows: int, inner: int, columns: int, dtype: DType, transposed: Transposed) -> Product:
    """A product whose rows are the batch's."""
    each, times = _split(rows, max(inner, columns))
    return Product(each, inner, columns, dtype, transposed, times)


def _by_inner(rows: int, inner: int, columns: int, dtype: DType) -> Product:
    """A product that sums over the batch."""
    each, times = _split(inner, max(rows, columns))
    return Product(rows, each, columns, dtype, "left", times)


def _sweep(moved_bytes: float) -> tuple[Sweep, ...]:
    if moved_bytes <= 0:
        return ()
    return (Sweep(*_split(max(1, round(moved_bytes / 8)), 1)),)


def _split(length: int, width: int) -> tuple[int, int]:
    """(length of each, how many) parts of a `length` x `width` operand that is not too large."""
    times = min(length, math.ceil(length * width / MOST_ELEMENTS))
    return round(length / times), times


Launch = Callable[[], object]


class KernelCompute(ReplayCompute):
    """A device that computes: `run` asks it for a stretch's kernels, one after another.

    Their operands are cut from three buffers of each dtype, made once and as large as the largest
    kernel needs; nothing is allocated while iterations run. What the products yield is never
    read: gradients come from the replay.
    """

    def __init__(self, graph: ModelGraph, device: torch.device) -> None:
        self._graph = graph
        self._device = device
        self._idle = True
        self._batch_factor = 0.0
        self._forward: list[list[Launch]] = []
        self._backward: list[list[Launch]] = []
        self.set_batch_factor(1.0)

    def set_batch_factor(self, factor: float) -> None:
        self._idle = factor == 0.0
        if self._idle or factor == self._batch_factor:
            return
        self._forward, self._backward = [], []  # lets go of the buffers before new ones are made
        kernels = graph_kernels(self._graph, factor)
        buffers = _buffers(
            (kernel for one in kernels for kernel in (*one.forward, *one.backward)), self._device
        )
        launches: dict[Kernel, Launch] = {}

        def launched(some: tuple[Kernel, ...]) -> list[Launch]:
            found = []
            for kernel in some:
                if kernel not in launches:
                    launches[kernel] = _launch(kernel, buffers)
                found += [launches[kernel]] * kernel.times
            return found

        self._forward = [launched(one.forward) for one in kernels]
        self._backward = [launched(one.backward) for one in kernels]
        self._batch_factor = factor

    def run(self, stretch: Stretch) -> None:
        if self._idle:
            return
        of = self._backward if stretch.backward else self._forward
        for operation in stretch.operations:
            for launch in of[operation]:
                launch()


Buffers = dict[DType, tuple[Tensor, Tensor, Tensor]]
"""Left operands, right operands and results, flat."""


def _buffers(kernels: Iterable[Kernel], device: torch.device) -> Buffers:
    """Random values: of zeros a GPU multiplies faster than of anything else."""
    sizes: dict[DType, list[int]] = {}
    for kernel in kernels:
        dtype, *needed = _needs(kernel)
        known = sizes.setdefault(dtype, [0, 0, 0])
        sizes[dtype] = [max(pair) for pair in zip(known, needed, strict=True)]
    chooser = torch.Generator(device).manual_seed(0)

    def filled(size: int, dtype: DType) -> Tensor:
        empty = torch.empty(size, dtype=TORCH_DTYPES[dtype], device=device)
        return empty.uniform_(-1, 1, generator=chooser)

    return {
        dtype: (filled(left, dtype), filled(right, dtype), filled(result, dtype))
        for dtype, (left, right, result) in sizes.items()
    }


def _needs(kernel: Kernel) -> tuple[DType, int, int, int]:
    """Elements of the left operand, the right one and the result."""
    if isinstance(kernel, Sweep):
        return "float32", kernel.elements, 0, kernel.elements
    rows, inner, columns = kernel.rows, kernel.inner, kernel.columns
    return kernel.dtype, rows * inner, inner * columns, rows * columns


def _launch(kernel: Kernel, buffers: Buffers) -> Launch:
    dtype, *sizes = _needs(kernel)
    left, right, result = (
        buffer[:size] for buffer, size in zip(buffers[dtype], sizes, strict=True)
    )
    if isinstance(kernel, Product):
        return partial(
            torch.mm,
            _laid_out(left, kernel.rows, kernel.inner, kernel.transposed == "left"),
            _laid_out(right, kernel.inner, kernel.columns, kernel.transposed == "right"),
            out=result.view(kernel.rows, kernel.columns),
        )
    return partial(torch.mul, left, 0.5, out=result)


def _laid_out(flat: Tensor, rows: int, columns: int, transposed: bool) -> Tensor:
    """A matrix of `rows` x `columns`, in memory as it is or as its transpose."""
    return flat.view(columns, rows).t() if transposed else flat.view(rows, columns)
