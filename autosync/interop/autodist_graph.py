"""AutoDist's graph items: the variables of a TensorFlow graph and the order of its gradients.

A graph item knows the variables (name, shape, type, whether the gradient is sparse) and how nodes
depend on each other. It does not know shapes of activations, the batch size, how many rows a
lookup touches, or how long anything takes: the batch size and the touched rows are the caller's to
state, FLOPs are a lower bound, and compute seconds come with a profile or a known step time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from autosync.errors import InvalidInput
from autosync.graph import DType, ModelGraph, Operation, Variable
from autosync.interop import refused_file
from autosync.interop.autodist_strategy import variable_name
from autosync.interop.dataflow import Dataflow, read_dataflow
from autosync.interop.protobuf_messages import parse_message

_refused = partial(
    refused_file,
    remedy="A graph item holds a GraphDef, the gradients and the variables' definitions.",
)


MAX_GRAPH_BYTES = 64_000_000
MAX_ELEMENTS = 1 << 40
DTYPES: dict[int, DType] = {1: "float32", 2: "float64", 14: "bfloat16", 19: "float16"}
"""By TensorFlow's DataType, the types that a variable can have here."""

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
