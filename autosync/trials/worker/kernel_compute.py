"""Runs the kernels that stand for a graph's operations, on a CPU or a GPU."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from autosync.graph import DType, ModelGraph
from autosync.torch_dtypes import TORCH_DTYPES
from autosync.trials.worker.operation_kernels import Kernel, Product, Sweep, graph_kernels
from autosync.trials.worker.replay_compute import Stretch

Launch = Callable[[], object]


class KernelCompute:
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

    def set_swap_slowdown(self, factor: float) -> None:
        """Kernels take what they take."""

    def start(self) -> None:
        """A device needs no telling."""

    def resume(self) -> None:
        """Nor that it has gone on."""

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
