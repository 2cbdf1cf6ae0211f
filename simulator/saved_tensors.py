"""Which outputs an operation keeps from its forward to its backward pass, and whose storage it
writes into: torch's tools/autograd/derivatives.yaml, and the operators themselves."""

from dataclasses import dataclass
from typing import Literal

from autosync.graph import ModelGraph, Operation

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
            size /= 4
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
