"""Whole numbers that an ONNX graph computes with, where they are known: the shape of a value,
gathered and joined again for a Reshape, say."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from autosync.graph import MAX_SHAPE
from autosync.interop.onnx_messages import INT64, ITEM_BYTES, OnnxNode, OnnxTensor

Shape = tuple[int, ...]
MAX_KNOWN = 64
"""Numbers in a constant that is followed; shapes and axes are shorter."""
LARGEST_KNOWN = 1 << 62
"""A chain of products doubles the digits with every node."""


@dataclass(slots=True)
class KnownValues:
    """shapes: of values. numbers: those of small integer values. item_bytes: of an element."""

    shapes: dict[str, Shape] = field(default_factory=dict)
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    item_bytes: dict[str, int] = field(default_factory=dict)

    def add_constant(self, name: str, tensor: OnnxTensor) -> None:
        if len(tensor.dims) > MAX_SHAPE:
            return
        self.shapes[name] = tensor.dims
        self.item_bytes[name] = ITEM_BYTES.get(tensor.data_type, 4)
        if tensor.data_type == INT64 and math.prod(tensor.dims) <= MAX_KNOWN:
            raw = tensor.raw_data.cut()
            stored = [raw[i : i + 8] for i in range(0, len(raw) - 7, 8)]
            given = tuple(int.from_bytes(each, "little", signed=True) for each in stored)
            if len(found := given or tensor.int64_data) == math.prod(tensor.dims):
                self.numbers[name] = found

    def size_bytes(self, name: str) -> int:
        return math.prod(self.shapes.get(name, (0,))) * self.item_bytes.get(name, 4)


def fold_numbers(node: OnnxNode, known: KnownValues) -> tuple[int, ...] | None:
    """The numbers that the node computes from known ones; None where they are not known."""
    if node.op_type == "Constant":
        value = node.named("value")
        if value is not None and value.t is not None:
            known.add_constant(node.output[0], value.t)
            return known.numbers.get(node.output[0])
        for name in ("value_ints", "value_int"):
            if (given := node.named(name)) is not None:
                return given.ints if name == "value_ints" else (given.i,)
        return None
    if node.op_type in ("Shape", "Size"):
        shape = known.shapes.get(node.input[0]) if node.input else None
        if shape is None or node.op_type == "Size":
            return None if shape is None else (math.prod(shape),)
        return shape[node.number("start") : node.number("end", len(shape))]
    inputs = [known.numbers.get(name) for name in node.input]
    if not inputs or any(each is None for each in inputs):
        return None
    given_numbers = [each for each in inputs if each is not None]
    folded = FOLDING.get(node.op_type)
    try:
        found = folded(node, given_numbers) if folded else None
    except (IndexError, ValueError, ZeroDivisionError):
        return None
    if found is None or len(found) > MAX_KNOWN:
        return None
    return found if all(abs(number) <= LARGEST_KNOWN for number in found) else None


Folded = Callable[[OnnxNode, list[tuple[int, ...]]], tuple[int, ...] | None]


def _pairs(apply: Callable[[int, int], int]) -> Folded:
    def folded(node: OnnxNode, given: list[tuple[int, ...]]) -> tuple[int, ...]:
        left, right = given
        length = max(len(left), len(right))
        left, right = (each * length if len(each) == 1 else each for each in (left, right))
        return tuple(apply(a, b) for a, b in zip(left, right, strict=True))

    return folded


def _chosen(
    which: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]
) -> tuple[int, ...]:
    length = max(len(which), len(left), len(right))
    columns = (each * length if len(each) == 1 else each for each in (which, left, right))
    return tuple(a if chosen else b for chosen, a, b in zip(*columns, strict=True))


FOLDING: dict[str, Folded] = {
    **dict.fromkeys(
        ("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape"), lambda node, given: given[0]
    ),
    "Concat": lambda node, given: tuple(number for part in given for number in part),
    "Gather": lambda node, given: tuple(given[0][place] for place in given[1]),
    "Slice": lambda node, given: given[0][
        given[1][0] : given[2][0] : given[4][0] if len(given) > 4 else 1
    ],
    "Where": lambda node, given: _chosen(*given),
    "ReduceProd": lambda node, given: (math.prod(given[0]),),
    "Add": _pairs(lambda a, b: a + b),
    "Sub": _pairs(lambda a, b: a - b),
    "Mul": _pairs(lambda a, b: a * b),
    "Div": _pairs(lambda a, b: a // b),
    "Mod": _pairs(lambda a, b: a % b),
    "Max": _pairs(max),
    "Min": _pairs(min),
    "Equal": _pairs(lambda a, b: int(a == b)),
}
