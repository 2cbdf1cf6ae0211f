"""Values of an ONNX graph: their types and shapes, small whole numbers, and FLOPs of the nodes.

The package onnx infers the shapes, node by node, from the types and the known numbers of a node's
inputs.
"""

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.extras import needs
from autosync.graph import ATTENTION, MAX_SHAPE

with needs("onnx", "an ONNX file"):
    from onnx import TensorProto, helper, numpy_helper
    from onnx.checker import ValidationError
    from onnx.defs import SchemaError, get_schema, onnx_opset_version
    from onnx.reference import ReferenceEvaluator
    from onnx.shape_inference import InferenceError, infer_node_outputs

Shape = tuple[int, ...]

MAX_KNOWN = 64
"""Elements of a tensor whose numbers are kept: shapes and axes are shorter."""

COMPUTED = frozenset(
    (
        *("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Concat", "Gather", "Slice"),
        *("Where", "ReduceProd", "Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal"),
        *("ConstantOfShape", "Expand", "Transpose"),
    )
)
"""Operators that compute shapes from shapes in exported files, evaluated where inputs are known."""

SAME_SHAPE = frozenset(("GroupNormalization", "SkipLayerNormalization"))
"""Operators without shape inference in onnx whose output has the shape of the first input."""

TYPE_NAMES = {
    "Conv": "convolution",
    "ConvTranspose": "convolution",
    "Gemm": "addmm",
    "MatMul": "matmul",
    "Gather": "embedding",
    "BatchNormalization": "native_batch_norm",
    "LayerNormalization": "native_layer_norm",
    "Attention": ATTENTION,
    "Einsum": "bmm",
}
"""torch's names of ONNX operators; others keep their own in lower case."""


class OnnxValues:
    """What is known of each value by name. versions: of the operator sets, by domain."""

    def __init__(self, versions: dict[str, int]) -> None:
        self.versions = versions
        self.types: dict[str, Any] = {}
        self.shapes: dict[str, Shape] = {}
        self.numbers: dict[str, NDArray[Any]] = {}

    def add(self, name: str, data_type: int, shape: Shape | None) -> None:
        """A value; where no shape is known, its element type alone."""
        self.types[name] = helper.make_tensor_type_proto(data_type, shape)
        if shape is not None and len(shape) <= MAX_SHAPE:
            self.shapes[name] = shape

    def add_constant(self, name: str, tensor: Any) -> None:
        """A tensor of the file. Its numbers are read where it is a small one of int64."""
        shape = tuple(tensor.dims)
        if len(shape) > MAX_SHAPE or any(size < 0 for size in shape):
            return
        self.add(name, tensor.data_type, shape)
        inside = tensor.data_location != TensorProto.EXTERNAL
        if inside and tensor.data_type == TensorProto.INT64 and math.prod(shape) <= MAX_KNOWN:
            try:
                self.numbers[name] = numpy_helper.to_array(tensor)
            except ValueError:  # absent, or another count than the dimensions say
                return

    def item_bytes(self, name: str) -> int:
        """Bytes of an element; 4 where its type is not known."""
        try:
            data_type = self.types[name].tensor_type.elem_type
            return int(helper.tensor_dtype_to_np_dtype(data_type).itemsize)
        except (KeyError, TypeError):
            return 4

    def size_bytes(self, name: str) -> int:
        return math.prod(self.shapes.get(name, (0,))) * self.item_bytes(name)

    def infer(self, node: Any) -> list[Shape | None]:
        """Adds the types of the node's outputs, and its numbers where they follow from known ones.
        Returns the outputs' shapes; None where one is not known."""
        found = self._constant_types(node) or self._inferred_types(node)
        shapes: list[Shape | None] = []
        for name in node.output:
            shape = _known_shape(found.get(name))
            shapes.append(shape)
            if name in found:
                self.types[name] = found[name]
            if shape is not None:
                self.shapes[name] = shape
        if shapes and shapes[0] is not None and math.prod(shapes[0]) <= MAX_KNOWN:
            self._compute(node)
        return shapes

    def _constant_types(self, node: Any) -> dict[str, Any]:
        """Of a Constant that holds a tensor, whose bytes are not copied for the inference."""
        tensor = attribute(node, "value") if node.op_type == "Constant" else None
        if tensor is None or not node.output:
            return {}
        self.add_constant(node.output[0], tensor)
        return {name: self.types[name] for name in node.output[:1] if name in self.types}

    def _inferred_types(self, node: Any) -> dict[str, Any]:
        if node.op_type in SAME_SHAPE:
            types = [self.types.get(name) for name in node.input[:1]]
            return dict(zip(node.output[:1], types, strict=False)) if any(types) else {}
        version = self.versions.get(node.domain, onnx_opset_version())
        try:
            schema = get_schema(node.op_type, version, node.domain)
            inputs = {name: self.types[name] for name in node.input if name}
            known = (name for name in node.input if name in self.numbers)
            numbers = {name: numpy_helper.from_array(self.numbers[name]) for name in known}
            found: dict[str, Any] = infer_node_outputs(schema, node, inputs, numbers)
        except (SchemaError, InferenceError, ValidationError):
            return {}  # an unknown operator, or a node that onnx refuses
        except (KeyError, RuntimeError, TypeError, ValueError):
            return {}  # an input of no known type, or a damaged node
        return found

    def _compute(self, node: Any) -> None:
        numbers = None
        if node.op_type in ("Shape", "Size"):
            numbers = self._numbers_of_shape(node)
        elif node.op_type == "Constant":
            for name in ("value_ints", "value_int"):
                given = attribute(node, name)
                numbers = numbers if given is None else np.array(given, np.int64)
        elif node.op_type in COMPUTED and all(name in self.numbers for name in node.input):
            inputs = {name: self.numbers[name] for name in node.input}
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    (numbers,) = ReferenceEvaluator(node).run(None, inputs)
            except Exception:  # the evaluator of onnx states no errors: a node that cannot be run
                return
        if numbers is not None and numbers.dtype in (np.int64, np.int32, np.bool_):
            self.numbers[node.output[0]] = numbers

    def _numbers_of_shape(self, node: Any) -> NDArray[np.int64] | None:
        shape = self.shapes.get(node.input[0]) if node.input else None
        if shape is None:
            return None
        if node.op_type == "Size":
            return np.array(math.prod(shape), np.int64)
        start, end = number(node, "start"), number(node, "end", len(shape))
        return np.array(shape[start:end], np.int64)


def _known_shape(value_type: Any) -> Shape | None:
    if value_type is None or not value_type.tensor_type.HasField("shape"):
        return None
    sizes = value_type.tensor_type.shape.dim
    if len(sizes) > MAX_SHAPE or any(not size.HasField("dim_value") for size in sizes):
        return None
    shape = tuple(size.dim_value for size in sizes)
    return shape if all(size >= 0 for size in shape) else None


def attribute(node: Any, name: str) -> Any:
    """The attribute's value; None where the node has none of that name."""
    found = next((each for each in node.attribute if each.name == name), None)
    return None if found is None else helper.get_attribute_value(found)


def number(node: Any, name: str, default: int = 0) -> int:
    found = attribute(node, name)
    return found if isinstance(found, int) else default


def forward_flops(node: Any, values: OnnxValues, output: Shape) -> int:
    """As torch counts those of its own operators: two for each multiplication with an addition, in
    matrix products, convolutions and attention only.

    output: shape of the node's first output.
    """
    shapes = [values.shapes.get(name) for name in node.input]
    if len(shapes) < 2 or shapes[0] is None or shapes[1] is None:
        return 0
    left, right = shapes[0], shapes[1]
    match node.op_type:
        case "Conv":
            return 2 * math.prod(output) * math.prod(right[1:])
        case "ConvTranspose":
            return 2 * math.prod(left) * math.prod(right[1:])
        case "Gemm":
            inner = left[:1] if number(node, "transA") else left[1:2]
            return 2 * math.prod(output) * math.prod(inner)
        case "MatMul":
            return 2 * math.prod(output) * (left[-1] if left else 1)
        case "LSTM" | "GRU" | "RNN":
            recurrent = shapes[2] if len(shapes) > 2 else None
            return 2 * math.prod(left[:2]) * (math.prod(right) + math.prod(recurrent or (0,)))
        case "Einsum" if len(shapes) == 2:
            equation = attribute(node, "equation")
            named = equation.decode("ascii", "replace") if isinstance(equation, bytes) else ""
            return _einsum_flops(named, (left, right))
        case "Attention" if min(len(left), len(right)) > 2:
            past = shapes[4] if len(shapes) > 4 else None
            keys = right[-2] + (past[-2] if past and len(past) > 2 else 0)
            return 2 * keys * (math.prod(left) + math.prod(output))
    return 0


def _einsum_flops(equation: str, shapes: tuple[Shape, Shape]) -> int:
    """A multiplication for every combination of the indices of both operands."""
    sizes: dict[str | int, int] = {}
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    for term, shape in zip(terms, shapes, strict=False):
        before, _, after = term.partition("...")
        unnamed = range(len(before) + len(after) - len(shape), 0)  # counted from their end
        indices: list[str | int] = [*before, *unnamed, *after]
        for index, size in zip(indices, shape, strict=False):
            sizes[index] = max(size, sizes.get(index, 0))
    return 2 * math.prod(sizes.values()) if sizes else 0


def factor_rows(node: Any, values: OnnxValues) -> tuple[str, int] | None:
    """The input that a matrix product multiplies with rows of activations, and how many rows."""
    if node.op_type not in ("Gemm", "MatMul") or len(node.input) < 2:
        return None
    left, right = (values.shapes.get(name) for name in node.input[:2])
    if left is None or right is None or len(left) < 2 or len(right) != 2:
        return None
    by_columns = node.op_type == "Gemm" and number(node, "transA")
    return node.input[1], left[1] if by_columns else math.prod(left[:-1])
