"""The part of ONNX's messages that a graph needs; field numbers as its published onnx.proto.

Weights are left where they lie: a tensor's bytes are a window of the file that nothing reads but
small integer constants (shapes, axes).
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from autosync.graph import DType
from autosync.interop.protobuf_wire import Window

EMPTY = Window.of(b"")


@dataclass(frozen=True, slots=True)
class OnnxDimension:
    """value: 0 where it is unknown, or where `param` names it."""

    value: Annotated[int, 1] = 0
    param: Annotated[str, 2] = ""
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class OnnxShape:
    dim: Annotated[tuple[OnnxDimension, ...], 1] = ()
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class OnnxTensorType:
    elem_type: Annotated[int, 1] = 0
    shape: Annotated[OnnxShape | None, 2] = None
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class OnnxType:
    tensor_type: Annotated[OnnxTensorType | None, 1] = None
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class OnnxValueInfo:
    name: Annotated[str, 1] = ""
    type: Annotated[OnnxType | None, 2] = None
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    dims: Annotated[tuple[int, ...], 1] = ()
    data_type: Annotated[int, 2] = 0
    int64_data: Annotated[tuple[int, ...], 7] = ()
    name: Annotated[str, 8] = ""
    raw_data: Annotated[Window, 9] = EMPTY
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class OnnxAttribute:
    """A number, a text, a list of numbers or a tensor; floats and subgraphs are not read."""

    name: Annotated[str, 1] = ""
    i: Annotated[int, 3] = 0
    s: Annotated[Window, 4] = EMPTY
    t: Annotated[OnnxTensor | None, 5] = None
    ints: Annotated[tuple[int, ...], 8] = ()
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """input: names of values; an empty one stands for an optional input that is left out."""

    input: Annotated[tuple[str, ...], 1] = ()
    output: Annotated[tuple[str, ...], 2] = ()
    name: Annotated[str, 3] = ""
    op_type: Annotated[str, 4] = ""
    attribute: Annotated[tuple[OnnxAttribute, ...], 5] = ()
    domain: Annotated[str, 7] = ""
    OPEN: ClassVar[bool] = True

    def named(self, name: str) -> OnnxAttribute | None:
        return next((each for each in self.attribute if each.name == name), None)

    def number(self, name: str, default: int = 0) -> int:
        found = self.named(name)
        return default if found is None else found.i

    def numbers(self, name: str) -> tuple[int, ...]:
        found = self.named(name)
        return () if found is None else found.ints


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    node: Annotated[tuple[OnnxNode, ...], 1] = ()
    name: Annotated[str, 2] = ""
    initializer: Annotated[tuple[OnnxTensor, ...], 5] = ()
    input: Annotated[tuple[OnnxValueInfo, ...], 11] = ()
    output: Annotated[tuple[OnnxValueInfo, ...], 12] = ()
    value_info: Annotated[tuple[OnnxValueInfo, ...], 13] = ()
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class OnnxModel:
    ir_version: Annotated[int, 1] = 0
    graph: Annotated[OnnxGraph | None, 7] = field(default=None)
    OPEN: ClassVar[bool] = True


FLOAT_TYPES: dict[int, DType] = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
INT64 = 7
ITEM_BYTES = {
    1: 4,
    2: 1,
    3: 1,
    4: 2,
    5: 2,
    6: 4,
    7: 8,
    9: 1,
    10: 2,
    11: 8,
    12: 4,
    13: 8,
    14: 8,
    15: 16,
    16: 2,
}
"""Of ONNX's data types by number."""
