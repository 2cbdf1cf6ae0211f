"""What an ONNX graph begins with: its trainable tensors, and its inputs at a batch size."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from autosync.errors import InvalidInput
from autosync.graph import MAX_SHAPE, Variable
from autosync.interop.onnx_constants import KnownValues, Shape
from autosync.interop.onnx_messages import FLOAT_TYPES, ITEM_BYTES, OnnxGraph, OnnxValueInfo

MAX_ELEMENTS = 1 << 46

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


@dataclass(slots=True)
class OnnxTensors:
    """variables: in the file's order. variable_of: index of each by its name. inputs: names of the
    values that a batch gives. weights: names of values that stand where weights do."""

    source: str
    weights: frozenset[str] = frozenset()
    known: KnownValues = field(default_factory=KnownValues)
    variables: list[Variable] = field(default_factory=list)
    variable_of: dict[str, int] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)

    def add_variable(self, name: str, shape: Shape, data_type: int) -> None:
        elements = 1
        for size in shape:
            elements *= size
            if size < 1 or elements > MAX_ELEMENTS:
                raise refused(self.source, f"tensor {name!r} has the shape {shape[:8]}")
        self.known.shapes[name] = shape
        self.known.item_bytes[name] = ITEM_BYTES[data_type]
        self.variable_of[name] = len(self.variables)
        self.variables.append(Variable(name, shape, FLOAT_TYPES[data_type]))


def read_tensors(graph: OnnxGraph, batch_size: int, length: int | None, source: str) -> OnnxTensors:
    """Raises InvalidInput where there is no input, where the file states another batch size, or
    where a dimension has no size."""
    excluded = set(_inputs_at(graph, OTHER_INPUTS))
    tensors = OnnxTensors(source, frozenset(_inputs_at(graph, PARAMETER_INPUTS)) - excluded)
    for tensor in graph.initializer:
        tensors.known.add_constant(tensor.name, tensor)
        is_other = tensor.name in excluded or tensor.name in tensors.variable_of
        if tensor.data_type in FLOAT_TYPES and tensor.dims and not is_other:
            tensors.add_variable(tensor.name, tensor.dims, tensor.data_type)
    for value in graph.input:
        kind, shape = _type_of(value)
        is_weight = value.name in tensors.weights and value.name not in tensors.variable_of
        if is_weight and kind in FLOAT_TYPES:
            tensors.add_variable(value.name, shape, kind)
    _read_inputs(graph, tensors, batch_size, length)
    return tensors


def _inputs_at(graph: OnnxGraph, places: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Names of the values there, and of those that they are aliases of."""
    alias_of = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type in ALIASES and node.input and node.output
    }
    found: dict[str, None] = {}
    for node in graph.node:
        for place in places.get(node.op_type, ()):
            name = node.input[place] if place < len(node.input) else ""
            while name and name not in found:
                found[name] = None
                name = alias_of.get(name, "")
    return list(found)


def _read_inputs(
    graph: OnnxGraph, tensors: OnnxTensors, batch_size: int, length: int | None
) -> None:
    given = [value for value in graph.input if value.name not in tensors.known.shapes]
    if not given:
        raise refused(tensors.source, "has no inputs")
    batch = next(iter(_dimensions(given[0])), 0)
    if isinstance(batch, int) and batch not in (0, batch_size):
        raise InvalidInput(
            f"{tensors.source} was exported at batch size {batch}, not {batch_size}.",
            thing="batch size",
            value=batch_size,
            remedy=f"Ask for {batch}, or export it with a dynamic first dimension.",
        )
    for value in given:
        shape = []
        dimensions = _dimensions(value)
        if len(dimensions) > MAX_SHAPE:
            raise refused(tensors.source, f"input {value.name!r} has {len(dimensions)} dimensions")
        for place, size in enumerate(dimensions):
            if isinstance(size, int) and size > 0:
                shape.append(size)
            elif place == 0 or (size and size == batch):
                shape.append(batch_size)
            elif length is not None:
                shape.append(length)
            else:
                raise _no_size(tensors.source, value.name, size)
        tensors.known.shapes[value.name] = tuple(shape)
        tensors.known.item_bytes[value.name] = ITEM_BYTES.get(_type_of(value)[0], 4)
        tensors.inputs.append(value.name)


def _type_of(value: OnnxValueInfo) -> tuple[int, Shape]:
    """Data type and shape; unknown dimensions are 0."""
    tensor = value.type.tensor_type if value.type else None
    if tensor is None:
        return 0, ()
    return tensor.elem_type, tuple(each.value for each in tensor.shape.dim) if tensor.shape else ()


def _dimensions(value: OnnxValueInfo) -> tuple[int | str, ...]:
    """Sizes, or the names of those that have a name only."""
    tensor = value.type.tensor_type if value.type else None
    shape = tensor.shape if tensor else None
    return tuple(each.param or each.value for each in shape.dim) if shape else ()


def _no_size(source: str, name: str, dimension: int | str) -> InvalidInput:
    return InvalidInput(
        f"{source}: dimension {dimension or '?'!r} of input {name!r} has no size.",
        thing="length",
        value=dimension,
        remedy="State it (--length), or export the model with fixed sizes.",
    )


def refused(source: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{source}: {why}.",
        thing=source,
        value=why,
        remedy="Give an ONNX file of a whole model, as torch.onnx.export writes it.",
    )
