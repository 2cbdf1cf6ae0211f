"""AutoDist's graph items: the variables of a TensorFlow graph and the order of its gradients, read
and written.

A graph item knows the variables (name, shape, type, whether the gradient is sparse) and how nodes
depend on each other. It does not know shapes of activations, the batch size, how many rows a
lookup touches, or how long anything takes: the batch size and the touched rows are the caller's to
state, FLOPs are a lower bound, and compute seconds come with a profile or a known step time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from autosync.errors import InvalidInput, NotSupported
from autosync.graph import DType, ModelGraph, Operation, Variable
from autosync.interop import refused_file
from autosync.interop.autodist_strategy import variable_name
from autosync.interop.dataflow import Dataflow, read_dataflow
from autosync.interop.protobuf_messages import new_message, parse_message

_refused = partial(
    refused_file,
    remedy="A graph item holds a GraphDef, the gradients and the variables' definitions.",
)


MAX_GRAPH_BYTES = 64_000_000
MAX_ELEMENTS = 1 << 40
DATA_TYPES: dict[DType, int] = {"float32": 1, "float64": 2, "bfloat16": 14, "float16": 19}
"""TensorFlow's DataType numbers of the types that a variable can have here."""
DTYPES = {number: name for name, number in DATA_TYPES.items()}

BATCH = "batch"
SPARSE_UPDATES = ("ResourceSparseApply", "SparseApply")
"""Beginnings of the types that update single rows of a variable, their first input."""


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """graph: of the variables that have a gradient. without_gradient: names of all others, which
    need no synchronization though a strategy may name them."""

    graph: ModelGraph
    without_gradient: frozenset[str]


def read_graph_item(
    data: bytes,
    name: str,
    batch_size: int,
    touched_rows: int | Mapping[str, int] | None = None,
    source: str = "graph_item",
) -> ImportedGraph:
    """The graph of a serialized graph item.

    Its operations are those nodes that first use a variable, in forward order; an edge stands for
    a path between two of them. FLOPs count each element of a dense matrix once an example, which a
    convolution exceeds.

    touched_rows: of sparse variables in one replica's iteration, for all or by name.

    Raises:
        InvalidInput: the bytes are no graph item, name what is not there, or what the caller must
            state is missing; names the offset, or the variable.
    """
    item = parse_message("GraphItem", data, source, MAX_GRAPH_BYTES)
    graph_def = _unwrapped(item.graph_def, "GraphDef", source)
    nodes = {node.name: node for node in graph_def.node}
    if len(nodes) != len(graph_def.node):
        raise _refused(source, "names two nodes alike")
    gradients = _gradients(item, graph_def, source)
    defined = _defined(item, gradients, source)
    rows = _TouchedRows(touched_rows, source)
    variables = [
        _variable(each, gradients[each], nodes, rows, source)
        for each in defined
        if each in gradients
    ]
    tensors = {variable.name: gradients[variable.name].tensor for variable in variables}
    flow = read_dataflow(graph_def.node, tensors, source)
    return ImportedGraph(
        _graph(name, batch_size, variables, flow), frozenset(defined) - frozenset(gradients)
    )


@dataclass(frozen=True, slots=True)
class _GradientTensor:
    tensor: str
    sparse: bool


@dataclass(frozen=True, slots=True)
class _TouchedRows:
    given: int | Mapping[str, int] | None
    source: str

    def of(self, name: str, shape: tuple[int, ...]) -> int:
        rows = self.given.get(name) if isinstance(self.given, Mapping) else self.given
        if rows is None or not rows > 0:
            raise InvalidInput(
                f"variable {name!r} of {self.source} has a sparse gradient, and a graph item does "
                "not say how many rows an iteration touches.",
                thing=f"variable {name}",
                value=rows,
                remedy="State it as touched_rows: lookups of one replica's batch.",
            )
        return min(rows, shape[0]) if shape else rows


def _unwrapped(wrapped: Any, kind: str, source: str) -> Any:
    """The message in an Any, which must be of the type due."""
    stated = wrapped.type_url.rpartition("/")[2]
    if stated.rpartition(".")[2] != kind:
        raise _refused(source, f"a {kind} is due, not {stated!r}")
    return parse_message(kind, wrapped.value, source, MAX_GRAPH_BYTES)


def _gradients(item: Any, graph_def: Any, source: str) -> dict[str, _GradientTensor]:
    """By variable. IndexedSlices are three tensors in one key; their values come second."""
    by_rows = {
        variable_name(node.input[0])
        for node in graph_def.node
        if node.input and node.op.startswith(SPARSE_UPDATES)
    }
    found: dict[str, _GradientTensor] = {}
    for pair in item.grad_target_pairs:
        tensors = pair.key.split(";")
        name = variable_name(pair.value)
        if name in found:
            raise _refused(source, f"gives variable {name!r} two gradients")
        slices = len(tensors) > 1
        found[name] = _GradientTensor(tensors[1 if slices else 0], slices or name in by_rows)
    if not found:
        raise _refused(source, "maps no gradient to a variable")
    return found


def _defined(item: Any, gradients: Mapping[str, _GradientTensor], source: str) -> list[str]:
    """Names of the variables, in the order of their definitions."""
    defined = (_unwrapped(each, "VariableDef", source) for each in item.info.variables)
    names = [variable_name(each.variable_name) for each in defined]
    missing = gradients.keys() - set(names)
    if missing:
        raise _refused(source, f"has a gradient for {min(missing)!r}, but no definition of it")
    return list(dict.fromkeys(names))


def _variable(
    name: str,
    gradient: _GradientTensor,
    nodes: Mapping[str, Any],
    rows: _TouchedRows,
    source: str,
) -> Variable:
    node = nodes.get(name)
    if node is None:
        raise _refused(source, f"variable {name!r} has no node")
    attributes = {each.key: each.value for each in node.attr}
    dtype = DTYPES.get(attributes["dtype"].type) if "dtype" in attributes else None
    if dtype is None:
        raise _refused(source, f"variable {name!r} has no floating-point dtype")
    stated = attributes.get("shape")
    if stated is None or not stated.HasField("shape") or stated.shape.unknown_rank:
        raise _refused(source, f"variable {name!r} has no shape")
    shape = tuple(dim.size for dim in stated.shape.dim)
    elements = 1
    for size in shape:
        elements *= size
        if size < 1 or elements > MAX_ELEMENTS:
            raise _refused(source, f"variable {name!r} has the shape {shape[:8]}")
    touched = rows.of(name, shape) if gradient.sparse else 0
    return Variable(name, shape, dtype, gradient.sparse, touched)


def _graph(name: str, batch_size: int, variables: list[Variable], flow: Dataflow) -> ModelGraph:
    index = {variable.name: i for i, variable in enumerate(variables)}
    operations = []
    operation_of: dict[str, int] = {}
    for number, use in enumerate(flow.uses):
        used = tuple(index[each] for each in use.variables)
        operation_of |= dict.fromkeys(use.variables, number)
        flops = sum(
            2 * batch_size * variables[i].elements
            for i in used
            if len(variables[i].shape) > 1 and not variables[i].sparse
        )
        operations.append(
            Operation(use.node, use.type, flops, 2 * flops, 0, True, use.inputs, used)
        )
    order = tuple(index[each] for each in flow.gradient_order)
    after = tuple(operation_of[variable.name] for variable in variables)
    backward = tuple(dict.fromkeys(after[i] for i in order))
    return ModelGraph(name, batch_size, tuple(operations), tuple(variables), backward, order, after)


def write_graph_item(graph: ModelGraph) -> bytes:
    """The graph with its variables, uses and the order in which gradients get ready.

    Operations keep their PyTorch types: TensorFlow reads such a GraphDef but cannot run it.

    What a graph item cannot hold is left out: batch size, FLOPs, output bytes, touched rows and
    factor rows. A tied variable's uses are all there. Gradients form a chain after the forward
    pass, since only their order is known.

    Raises:
        NotSupported: a variable's name has a sign that means something in names of tensors.
    """
    for variable in graph.variables:
        if any(sign in variable.name for sign in ":;^"):
            raise NotSupported(
                f"variable {variable.name!r} cannot be named in a graph item, where ':', ';' and "
                "'^' have a meaning.",
                thing=f"variable {variable.name}",
                value="has a name that a graph item cannot hold",
            )
    nodes = [new_message("NodeDef", name=BATCH, op="Placeholder")]
    nodes += [node for variable in graph.variables for node in _variable_nodes(variable)]
    nodes += _forward_nodes(graph)
    backward, pairs = _gradient_nodes(graph, nodes[-1].name)
    item = new_message("GraphItem", grad_target_pairs=pairs)
    item.graph_def.CopyFrom(_wrapped("GraphDef", node=[*nodes, *backward]))
    for variable in graph.variables:
        named = _wrapped("VariableDef", variable_name=f"{variable.name}:0")
        item.info.variables.append(named)
    data: bytes = item.SerializeToString()
    return data


def _wrapped(kind: str, **fields: Any) -> Any:
    message = new_message(kind, **fields)
    url = f"type.googleapis.com/tensorflow.{kind}"
    return new_message("Any", type_url=url, value=message.SerializeToString())


def _read_name(variable: Variable) -> str:
    return f"{variable.name}/Read/ReadVariableOp"


def _variable_nodes(variable: Variable) -> Iterator[Any]:
    handle = new_message("NodeDef", name=variable.name, op="VarHandleOp")
    handle.attr.add(key="dtype").value.type = DATA_TYPES[variable.dtype]
    shape = handle.attr.add(key="shape").value.shape
    shape.SetInParent()  # a number has a shape, too
    for size in variable.shape:
        shape.dim.add(size=size)
    yield handle
    name = _read_name(variable)
    read = new_message("NodeDef", name=name, op="ReadVariableOp", input=[variable.name])
    read.attr.add(key="dtype").value.type = DATA_TYPES[variable.dtype]
    yield read


def _forward_nodes(graph: ModelGraph) -> list[Any]:
    """One node an operation, after all it reads; the first ones read the batch."""
    names = [
        f"forward/{i}/{operation.name.replace(':', '_')}"
        for i, operation in enumerate(graph.operations)
    ]
    nodes = []
    for name, operation in zip(names, graph.operations, strict=True):
        data = [names[i] for i in operation.inputs] or [BATCH]
        reads = [_read_name(graph.variables[i]) for i in operation.variables]
        nodes.append(new_message("NodeDef", name=name, op=operation.type, input=data + reads))
    return nodes


def _gradient_nodes(graph: ModelGraph, last: str) -> tuple[list[Any], list[Any]]:
    """The chain of gradients, and which belongs to which variable."""
    nodes: list[Any] = []
    pairs: list[Any] = []
    for index in graph.gradient_order:
        variable = graph.variables[index]
        parts = ("indices", "values", "dense_shape") if variable.sparse else ("dense",)
        names = [f"gradients/{variable.name}/{part}" for part in parts]
        nodes += [new_message("NodeDef", name=name, op="Gradient", input=[last]) for name in names]
        key = ";".join(f"{name}:0" for name in names)
        pairs.append(new_message("Pair", key=key, value=f"{variable.name}:0"))
        last = names[-1] if not variable.sparse else names[1]
    return nodes, pairs
