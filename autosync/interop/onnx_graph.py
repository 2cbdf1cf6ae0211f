"""Graphs of ONNX files, with or without weights.

A file holds the forward pass. Trainable are its floating-point initializers, but for running
statistics and single numbers, and constants that nodes make where weights stand; a constant table
that an operation reads looks like a parameter. Views and whole numbers that only say
shapes are no operations here, as in a recorded module.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from autosync.errors import InvalidInput
from autosync.extras import needs
from autosync.graph import MAX_OPERATIONS, MAX_SHAPE, DType, ModelGraph, Operation, Variable
from autosync.interop import refused_file
from autosync.interop.onnx_values import (
    TYPE_NAMES,
    OnnxValues,
    Shape,
    attribute,
    factor_rows,
    forward_flops,
)

with needs("onnx", "an ONNX file"):
    from google.protobuf.message import DecodeError
    from onnx import ModelProto, TensorProto

_refused = partial(
    refused_file, remedy="Give an ONNX file of a whole model, as torch.onnx.export writes it."
)


MAX_ONNX_BYTES = 1 << 31
"""Protobuf's own limit: larger models keep their weights in files beside, which are not read."""
MAX_ELEMENTS = 1 << 46

FLOAT_TYPES: dict[int, DType] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.BFLOAT16: "bfloat16",
}
VIEWS = frozenset(
    (
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Cast"),
        *("Dropout", "Split", "Expand", "Slice"),
    )
)
"""Nodes that compute nothing."""
PARAMETER_INPUTS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), (1, 2)),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), (1, 2)),
    **dict.fromkeys(("LayerNormalization", "GroupNormalization"), (1, 2)),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (1, 2, 3)),
    "PRelu": (1,),
    "RMSNormalization": (1,),
}
"""Where weights stand, in files that keep them as inputs, or compute them from nothing."""
OTHER_INPUTS = {
    "BatchNormalization": (3, 4),
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
    "Clip": (1, 2),
    "Pad": (1, 2),
    "Resize": (1, 2, 3),
    "Dropout": (1, 2),
    "Pow": (1,),
}
"""Running statistics and settings: constants that are no parameters."""
ALIASES = frozenset(
    {"Identity", "Cast", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Expand"}
)
"""Nodes that give their first input another name or shape."""


@dataclass(frozen=True, slots=True)
class ImportedOnnx:
    """graph: at the batch size that was asked for. estimated: types of operations that are not
    known here, and how many of each: they count no FLOPs, and as many bytes as their largest
    input."""

    graph: ModelGraph
    estimated: Mapping[str, int]


def read_onnx_graph(
    data: bytes, name: str, batch_size: int, length: int | None = None, source: str = "model.onnx"
) -> ImportedOnnx:
    """The graph of a serialized ONNX model. Files with external data are not opened.

    batch_size: of every input's first dimension; where the file states it, the same.
    length: of every other dimension that the file names only.

    Raises:
        InvalidInput: the bytes are no such model, it has no parameters or is of another batch
            size, or a dimension is not known; names the value.
    """
    if len(data) > MAX_ONNX_BYTES:
        raise _refused(source, f"has {len(data)} bytes, more than {MAX_ONNX_BYTES}")
    if batch_size < 1:
        raise _refused(source, f"cannot have a batch size of {batch_size}")
    try:
        model = ModelProto.FromString(data)
    except DecodeError as error:
        raise _refused(source, f"is damaged or no ONNX file ({error})") from None
    if not model.graph.node:
        raise _refused(source, "holds no graph")
    if not model.opset_import:
        raise _refused(source, "states no version of its operators")
    if len(model.graph.node) > MAX_OPERATIONS:
        raise _refused(source, f"has {len(model.graph.node)} nodes, more than {MAX_OPERATIONS}")
    _check_names(model.graph, source)
    assembly = _Assembly(model, source)
    assembly.read_tensors()
    assembly.read_inputs(batch_size, length)
    for node in model.graph.node:
        if node.output:
            assembly.read_node(node)
    return ImportedOnnx(assembly.graph(name, batch_size), dict(assembly.estimated))


class _Assembly:
    """variable_of: index of each variable by its names. weights: names of values that stand where
    weights do. writer: the operation that makes a value. batched: values that depend on the
    inputs. trained: whether a gradient reaches each operation. rows: of the activations that a
    matrix product multiplies with a variable, by variable."""

    def __init__(self, model: Any, source: str) -> None:
        self.file, self.source = model.graph, source
        self.values = OnnxValues({each.domain: each.version for each in model.opset_import})
        self.excluded = _names_at(model.graph, OTHER_INPUTS)
        self.weights = _names_at(model.graph, PARAMETER_INPUTS) - self.excluded
        self.variables: list[Variable] = []
        self.variable_of: dict[str, int] = {}
        self.batched: set[str] = set()
        self.operations: list[Operation] = []
        self.trained: list[bool] = []
        self.writer: dict[str, int] = {}
        self.rows: dict[int, list[int]] = {}
        self.estimated: Counter[str] = Counter()

    def read_tensors(self) -> None:
        for tensor in self.file.initializer:
            self.values.add_constant(tensor.name, tensor)
            is_other = tensor.name in self.excluded or tensor.name in self.variable_of
            if tensor.data_type in FLOAT_TYPES and tensor.dims and not is_other:
                self._add_variable(tensor.name, tuple(tensor.dims), tensor.data_type)
        for value in self.file.input:
            kind = value.type.tensor_type.elem_type
            is_weight = value.name in self.weights and value.name not in self.variable_of
            if is_weight and kind in FLOAT_TYPES:
                shape = tuple(each.dim_value for each in value.type.tensor_type.shape.dim)
                self._add_variable(value.name, shape, kind)

    def _add_variable(self, name: str, shape: Shape, data_type: int) -> None:
        elements = 1
        for size in shape:
            elements *= size
            if size < 1 or elements > MAX_ELEMENTS:
                raise _refused(self.source, f"tensor {name!r} has the shape {shape[:8]}")
        self.values.add(name, data_type, shape)
        self.variable_of[name] = len(self.variables)
        self.variables.append(Variable(name, shape, FLOAT_TYPES[data_type]))

    def read_inputs(self, batch_size: int, length: int | None) -> None:
        """Raises InvalidInput where there is no input, where the file states another batch size, or
        where a dimension has no size."""
        given = [value for value in self.file.input if value.name not in self.values.shapes]
        if not given:
            raise _refused(self.source, "has no inputs")
        batch = next(iter(_dimensions(given[0])), 0)
        if isinstance(batch, int) and batch not in (0, batch_size):
            raise InvalidInput(
                f"{self.source} was exported at batch size {batch}, not {batch_size}.",
                thing="batch size",
                value=batch_size,
                remedy=f"Ask for {batch}, or export it with a dynamic first dimension.",
            )
        for value in given:
            shape = []
            dimensions = _dimensions(value)
            if len(dimensions) > MAX_SHAPE:
                why = f"input {value.name!r} has {len(dimensions)} dimensions"
                raise _refused(self.source, why)
            for place, size in enumerate(dimensions):
                if isinstance(size, int) and size > 0:
                    shape.append(size)
                elif place == 0 or (size and size == batch):
                    shape.append(batch_size)
                elif length is not None:
                    shape.append(length)
                else:
                    raise _no_size(self.source, value.name, size)
            self.values.add(value.name, value.type.tensor_type.elem_type, tuple(shape))
            self.batched.add(value.name)

    def read_node(self, node: Any) -> None:
        shapes = self.values.infer(node)
        if node.output[0] in self.values.numbers:
            return
        for name, shape in zip(node.output, shapes, strict=True):
            if shape is not None and math.prod(shape) > MAX_ELEMENTS:
                raise _refused(self.source, f"value {name!r} has the shape {shape[:8]}")
        sources = [name for name in node.input if name]
        if node.op_type in VIEWS and sources:
            self._read_view(node, shapes)
        elif any(self._is_data(name) for name in sources):
            self._read_operation(node, sources, shapes)
        else:
            self._read_constant(node)

    def _read_constant(self, node: Any) -> None:
        """What a graph computes from no input: a parameter, where it stands in a parameter's place
        (files without weights fill them so)."""
        name = node.output[0]
        shape = self.values.shapes.get(name)
        tensor = attribute(node, "value") if node.op_type == "Constant" else None
        data_type = TensorProto.FLOAT if tensor is None else tensor.data_type
        if name in self.weights and shape and data_type in FLOAT_TYPES:
            self._add_variable(name, shape, data_type)

    def _is_data(self, name: str) -> bool:
        return name in self.batched or name in self.writer or name in self.variable_of

    def _read_view(self, node: Any, shapes: list[Shape | None]) -> None:
        """The same values under other names."""
        source = node.input[0]
        for name, shape in zip(node.output, shapes, strict=True):
            if shape is None and source in self.values.types:
                self.values.types[name] = self.values.types[source]
                self.values.shapes[name] = self.values.shapes.get(source, ())
            for table in (self.writer, self.variable_of):
                if source in table:
                    table[name] = table[source]
            if source in self.batched:
                self.batched.add(name)

    def _read_operation(self, node: Any, sources: list[str], shapes: list[Shape | None]) -> None:
        index = len(self.operations)
        if shapes[0] is None:
            self.estimated[node.op_type] += 1
            largest = max(sources, key=self.values.size_bytes)
            for name in node.output:
                if largest in self.values.shapes:
                    self.values.types[name] = self.values.types[largest]
                self.values.shapes[name] = self.values.shapes.get(largest, ())
        inputs = {self.writer[name] for name in sources if name in self.writer}
        read = {self.variable_of[name] for name in sources if name in self.variable_of}
        has_batch = any(name in self.batched for name in sources)
        flops = forward_flops(node, self.values, self.values.shapes[node.output[0]])
        learning = sum(self._learns(name) for name in node.input[:2])
        product = factor_rows(node, self.values)
        if product is not None and product[0] in self.variable_of:
            self.rows.setdefault(self.variable_of[product[0]], []).append(product[1])
        for name in node.output:
            self.writer[name] = index
            if has_batch:
                self.batched.add(name)
        self.trained.append(bool(read) or any(self.trained[i] for i in inputs))
        self.operations.append(
            Operation(
                name=node.name or f"{node.op_type}:{index}",
                type=TYPE_NAMES.get(node.op_type, node.op_type.lower()),
                forward_flops=flops,
                backward_flops=flops * learning,
                output_bytes=self.values.size_bytes(node.output[0]),
                has_batch_dimension=has_batch,
                inputs=tuple(sorted(inputs)),
                variables=tuple(sorted(read)),
                dtype=self._dtype(read, inputs),
            )
        )

    def _learns(self, name: str) -> bool:
        """Whether a gradient flows to this input of a product."""
        return name in self.variable_of or (name in self.writer and self.trained[self.writer[name]])

    def _dtype(self, read: set[int], inputs: set[int]) -> DType:
        """Of its variables, or else of what its inputs computed with."""
        if read:
            return self.variables[min(read)].dtype
        return self.operations[max(inputs)].dtype if inputs else "float32"

    def graph(self, name: str, batch_size: int) -> ModelGraph:
        """Gradients in the reverse order of first use: that of a variable used twice is a sum."""
        first: dict[int, int] = {}
        uses: Counter[int] = Counter()
        for index, operation in enumerate(self.operations):
            for variable in operation.variables:
                first.setdefault(variable, index)
                uses[variable] += 1
        if not self.variables:
            raise _refused(self.source, "has no trainable tensors")
        used = sorted(first)
        if not used:
            raise _refused(self.source, "has no operation that reads a trainable tensor")
        place = {variable: i for i, variable in enumerate(used)}
        late = list(reversed(range(len(self.operations))))
        return ModelGraph(
            name=name,
            batch_size=batch_size,
            operations=tuple(
                replace(each, variables=tuple(place[v] for v in each.variables))
                for each in self.operations
            ),
            variables=tuple(self._variable(variable, uses[variable]) for variable in used),
            backward_order=tuple(sorted(late, key=lambda i: not self.trained[i])),
            gradient_order=tuple(sorted(range(len(used)), key=lambda i: -first[used[i]])),
            gradient_after=tuple(first[variable] for variable in used),
        )

    def _variable(self, variable: int, uses: int) -> Variable:
        rows = self.rows.get(variable, [])
        return replace(
            self.variables[variable], factor_rows=rows[0] if len(rows) == uses == 1 else 0
        )


def _check_names(graph: Any, source: str) -> None:
    """Raises InvalidInput for a name that is no UTF-8, which protobuf gives as bytes."""
    names = [each.name for each in (*graph.initializer, *graph.input)]
    for node in graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
    if bad := next((name for name in names if isinstance(name, bytes)), None):
        raise _refused(source, f"has a name that is no UTF-8 text: {bad[:40]!r}")


def _names_at(graph: Any, places: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Names of the values there, and of those that they are aliases of."""
    alias_of = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type in ALIASES and node.input and node.output
    }
    found: set[str] = set()
    for node in graph.node:
        for place in places.get(node.op_type, ()):
            name = node.input[place] if place < len(node.input) else ""
            while name and name not in found:
                found.add(name)
                name = alias_of.get(name, "")
    return frozenset(found)


def _dimensions(value: Any) -> tuple[int | str, ...]:
    """Sizes, or the names of those that have a name only."""
    return tuple(each.dim_param or each.dim_value for each in value.type.tensor_type.shape.dim)


def _no_size(source: str, name: str, dimension: int | str) -> InvalidInput:
    return InvalidInput(
        f"{source}: dimension {dimension or '?'!r} of input {name!r} has no size.",
        thing="length",
        value=dimension,
        remedy="State it (--length), or export the model with fixed sizes.",
    )
