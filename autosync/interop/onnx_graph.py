"""Graphs of ONNX files, with or without weights.

A file holds the forward pass. Trainable are its floating-point initializers, but for running
statistics and single numbers, and constants that nodes make where weights stand; a constant table
that an operation reads cannot be told from a parameter. Views and whole numbers that only say
shapes are no operations here, as in a recorded module.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from mmap import mmap

from autosync.graph import DType, ModelGraph, Operation, Variable
from autosync.interop.onnx_constants import Shape, fold_numbers
from autosync.interop.onnx_flops import TYPE_NAMES, forward_flops, products
from autosync.interop.onnx_inputs import MAX_ELEMENTS, OnnxTensors, read_tensors, refused
from autosync.interop.onnx_messages import FLOAT_TYPES, ITEM_BYTES, OnnxModel, OnnxNode
from autosync.interop.onnx_shapes import infer_outputs
from autosync.interop.protobuf_records import decode
from autosync.interop.protobuf_wire import Window

MAX_ONNX_BYTES = 1 << 31
"""Protobuf's own limit: larger models keep their weights in files beside."""
MAX_ONNX_VALUES = 4_000_000
"""As `protobuf_records` counts: some 100,000 nodes."""

VIEWS = frozenset(
    (
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Cast"),
        *("Dropout", "Split", "Expand", "Slice"),
    )
)
"""Nodes that compute nothing."""


@dataclass(frozen=True, slots=True)
class ImportedOnnx:
    """graph: at the batch size that was asked for. estimated: types of operations that are not
    known here, and how many of each: they count no FLOPs, and as many bytes as their largest
    input."""

    graph: ModelGraph
    estimated: Mapping[str, int]


def read_onnx_graph(
    data: bytes | mmap,
    name: str,
    batch_size: int,
    length: int | None = None,
    source: str = "model.onnx",
) -> ImportedOnnx:
    """The graph of a serialized ONNX model.

    batch_size: of every input's first dimension; where the file states it, the same.
    length: of every other dimension that the file names only.

    Raises:
        InvalidInput: the bytes are no such model, it has no parameters or is of another batch
            size, or a dimension is not known; names the byte offset or the value.
    """
    if len(data) > MAX_ONNX_BYTES:
        raise refused(source, f"has {len(data)} bytes, more than {MAX_ONNX_BYTES}")
    if batch_size < 1:
        raise refused(source, f"cannot have a batch size of {batch_size}")
    model = decode(OnnxModel, Window.of(data, source), MAX_ONNX_VALUES)
    if model.graph is None or not model.graph.node:
        raise refused(source, "holds no graph")
    assembly = _Assembly(read_tensors(model.graph, batch_size, length, source))
    for node in model.graph.node:
        if node.output:
            assembly.read_node(node)
    return ImportedOnnx(assembly.graph(name, batch_size), dict(assembly.estimated))


class _Assembly:
    """writer: the operation that makes a value. batched: values that depend on the inputs.
    trained: whether a gradient reaches each operation. rows: of the activations that a matrix
    product multiplies with a variable, by variable."""

    def __init__(self, tensors: OnnxTensors) -> None:
        self.tensors, self.source, self.known = tensors, tensors.source, tensors.known
        self.variables, self.variable_of = tensors.variables, tensors.variable_of
        self.batched = set(tensors.inputs)
        self.operations: list[Operation] = []
        self.trained: list[bool] = []
        self.writer: dict[str, int] = {}
        self.rows: dict[int, list[int]] = {}
        self.estimated: Counter[str] = Counter()

    def read_node(self, node: OnnxNode) -> None:
        numbers = fold_numbers(node, self.known)
        if numbers is not None:
            self.known.numbers[node.output[0]] = numbers
            self.known.shapes.setdefault(node.output[0], (len(numbers),))
            return
        shapes = infer_outputs(node, self.known)
        for name, shape in zip(node.output, shapes, strict=True):
            if shape is not None and math.prod(shape) > MAX_ELEMENTS:
                raise refused(self.source, f"value {name!r} has the shape {shape[:8]}")
        sources = [name for name in node.input if name]
        if node.op_type in VIEWS and sources:
            self._read_view(node, shapes)
        elif any(self._is_data(name) for name in sources):
            self._read_operation(node, sources, shapes)
        else:
            self._read_constant(node, sources, shapes)

    def _read_constant(
        self, node: OnnxNode, sources: list[str], shapes: list[Shape | None]
    ) -> None:
        """What a graph computes from no input: a parameter, where it stands in a parameter's place
        (files without weights fill them so)."""
        value = node.named("value")
        given = value.t if value is not None else None
        if node.op_type == "Constant" and given is not None:
            shapes = [given.dims]
        self._know(node.output, shapes, self._item_bytes(sources))
        data_type = given.data_type if given is not None else 1
        name, shape = node.output[0], shapes[0]
        if name in self.tensors.weights and shape and data_type in FLOAT_TYPES:
            self.tensors.add_variable(name, shape, data_type)

    def _is_data(self, name: str) -> bool:
        return name in self.batched or name in self.writer or name in self.variable_of

    def _know(self, names: tuple[str, ...], shapes: list[Shape | None], item_bytes: int) -> None:
        for name, shape in zip(names, shapes, strict=True):
            self.known.item_bytes[name] = item_bytes
            if name and shape is not None:
                self.known.shapes[name] = shape

    def _item_bytes(self, sources: list[str]) -> int:
        return self.known.item_bytes.get(sources[0], 4) if sources else 4

    def _read_view(self, node: OnnxNode, shapes: list[Shape | None]) -> None:
        """The same values under other names."""
        source = node.input[0]
        whole = self.known.shapes.get(source)
        cast = ITEM_BYTES.get(node.number("to")) if node.op_type == "Cast" else None
        item_bytes = cast or self._item_bytes([source])
        self._know(node.output, [whole if each is None else each for each in shapes], item_bytes)
        for name in node.output:
            for table in (self.writer, self.variable_of):
                if source in table:
                    table[name] = table[source]
            if source in self.batched:
                self.batched.add(name)

    def _read_operation(
        self, node: OnnxNode, sources: list[str], shapes: list[Shape | None]
    ) -> None:
        index = len(self.operations)
        if shapes[0] is None:
            self.estimated[node.op_type] += 1
            largest = max(sources, key=self.known.size_bytes)
            shapes = [self.known.shapes.get(largest, ())] * len(shapes)
        inputs = {self.writer[name] for name in sources if name in self.writer}
        read = {self.variable_of[name] for name in sources if name in self.variable_of}
        has_batch = any(name in self.batched for name in sources)
        flops = forward_flops(node, self.known, shapes[0] or ())
        learning = sum(self._learns(name) for name in node.input[:2])
        for name, rows in products(node, self.known):
            if name in self.variable_of:
                self.rows.setdefault(self.variable_of[name], []).append(rows)
        places = [i for i, name in enumerate(sources) if name not in self.known.numbers]
        self._know(node.output, shapes, self._item_bytes([sources[i] for i in places[:1]]))
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
                output_bytes=self.known.size_bytes(node.output[0]),
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
            raise refused(self.source, "has no trainable tensors")
        used = sorted(first)
        if not used:
            raise refused(self.source, "has no operation that reads a trainable tensor")
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
