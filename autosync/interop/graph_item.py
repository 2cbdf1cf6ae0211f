"""AutoDist's graph items: the variables of a TensorFlow graph and the order of its gradients.

A graph item knows the variables (name, shape, type, whether the gradient is sparse) and how nodes
depend on each other. It does not know shapes of activations, the batch size, how many rows a
lookup touches, or how long anything takes: the batch size and the touched rows are the caller's to
state, FLOPs are a lower bound, and compute seconds come with a profile or a known step time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from autosync.errors import InvalidInput
from autosync.graph import ModelGraph, Operation, Variable
from autosync.interop.autodist_messages import (
    DATA_TYPES,
    AnyMessage,
    AttrValue,
    GraphDef,
    GraphItem,
    NodeDef,
    VariableDef,
)
from autosync.interop.dataflow import Dataflow, read_dataflow
from autosync.interop.protobuf_records import M, ValueBudget, decode
from autosync.interop.protobuf_wire import Window
from autosync.interop.strategy_import import variable_name

MAX_GRAPH_BYTES = 512_000_000
MAX_GRAPH_VALUES = 4_000_000
"""Of all its messages, as `protobuf_records` counts: some 190,000 nodes of four attributes."""
MAX_SHAPE_VALUES = 1000
MAX_ELEMENTS = 1 << 40
DTYPES = {number: name for name, number in DATA_TYPES.items()}


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
    if len(data) > MAX_GRAPH_BYTES:
        raise _refused(source, f"has {len(data)} bytes, more than {MAX_GRAPH_BYTES}")
    budget = ValueBudget(MAX_GRAPH_VALUES)
    item = decode(GraphItem, Window.of(data, source), budget)
    graph_def = _unwrapped(item.graph_def, GraphDef, budget, source)
    nodes = {node.name: node for node in graph_def.node}
    if len(nodes) != len(graph_def.node):
        raise _refused(source, "names two nodes alike")
    gradients = _gradients(item, graph_def, source)
    defined = _defined(item, gradients, budget, source)
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


def _unwrapped(wrapped: AnyMessage | None, cls: type[M], budget: ValueBudget, source: str) -> M:
    """The message of an Any, which must be of the type due."""
    if wrapped is None:
        raise _refused(source, f"holds no {cls.__name__}")
    kind = wrapped.type_url.rpartition("/")[2]
    if kind.rpartition(".")[2] != cls.__name__:
        raise wrapped.value.refused(
            wrapped.value.begin, "Any.type_url", f"a {cls.__name__} is due, not {kind!r}"
        )
    return decode(cls, wrapped.value, budget)


def _gradients(item: GraphItem, graph_def: GraphDef, source: str) -> dict[str, _GradientTensor]:
    """By variable. IndexedSlices are three tensors in one key; their values come second."""
    by_rows = {
        variable_name(node.input[0])
        for node in graph_def.node
        if node.input and node.op.startswith(SPARSE_UPDATES)
    }
    found: dict[str, _GradientTensor] = {}
    for key, target in item.grad_target_pairs.items():
        tensors = key.split(";")
        name = variable_name(target)
        if name in found:
            raise _refused(source, f"gives variable {name!r} two gradients")
        slices = len(tensors) > 1
        found[name] = _GradientTensor(tensors[1 if slices else 0], slices or name in by_rows)
    if not found:
        raise _refused(source, "maps no gradient to a variable")
    return found


def _defined(
    item: GraphItem, gradients: Mapping[str, _GradientTensor], budget: ValueBudget, source: str
) -> list[str]:
    """Names of the variables, in the order of their definitions."""
    wrapped = item.info.variables if item.info else ()
    defined = (_unwrapped(each, VariableDef, budget, source) for each in wrapped)
    names = [variable_name(each.variable_name) for each in defined]
    missing = gradients.keys() - set(names)
    if missing:
        raise _refused(source, f"has a gradient for {min(missing)!r}, but no definition of it")
    return list(dict.fromkeys(names))


def _variable(
    name: str,
    gradient: _GradientTensor,
    nodes: Mapping[str, NodeDef],
    rows: _TouchedRows,
    source: str,
) -> Variable:
    node = nodes.get(name)
    if node is None:
        raise _refused(source, f"variable {name!r} has no node")
    dtype = DTYPES.get(_attribute(node, "dtype").type)
    if dtype is None:
        raise _refused(source, f"variable {name!r} has no floating-point dtype")
    stated_shape = _attribute(node, "shape").shape
    if stated_shape is None or stated_shape.unknown_rank:
        raise _refused(source, f"variable {name!r} has no shape")
    shape = tuple(dim.size for dim in stated_shape.dim)
    elements = 1
    for size in shape:
        elements *= size
        if size < 1 or elements > MAX_ELEMENTS:
            raise _refused(source, f"variable {name!r} has the shape {shape[:8]}")
    touched = rows.of(name, shape) if gradient.sparse else 0
    return Variable(name, shape, dtype, gradient.sparse, touched)


def _attribute(node: NodeDef, name: str) -> AttrValue:
    """All defaults where the node has none of that name."""
    if name not in node.attr:
        return AttrValue()
    return decode(AttrValue, node.attr[name], MAX_SHAPE_VALUES)


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


def _refused(source: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{source}: {why}.",
        thing=source,
        value=why,
        remedy="A graph item holds a GraphDef, the gradients and the variables' definitions.",
    )
