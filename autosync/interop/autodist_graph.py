"""AutoDist's graph items: the variables of a TensorFlow graph and the order of its gradients.

A graph item knows the variables (name, shape, type, whether the gradient is sparse) and how nodes
depend on each other. It does not know shapes of activations, the batch size, how many rows a
lookup touches, or how long anything takes: the batch size and the touched rows are the caller's to
state, FLOPs are a lower bound, and compute seconds come with a profile or a known step time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from autosync.errors import InvalidInput
from autosync.graph import DType, ModelGraph, Operation, Variable
from autosync.interop import refused_file
from autosync.interop.autodist_strategy import variable_name
from autosync.interop.protobuf_messages import parse_message

MAX_PATHS = 5_000_000
"""Entries of the sets of operations upstream of each node; edges walked from variables to their
first uses."""

PASS_THROUGH = frozenset({"ReadVariableOp", "Identity", "Cast", "Enter", "Switch"})
"""Types of nodes that only pass a variable on to its use."""

CONSTANT = frozenset({"Const", "VarHandleOp", "VariableV2", "Variable", "VarIsInitializedOp"})

UPDATES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "Apply", "Scatter")
"""Beginnings of the types that write a variable."""


@dataclass(frozen=True, slots=True)
class Use:
    """A node of the forward pass that is the first to use these variables.

    inputs: indices of the uses before it, from which a path leads here past no other use.
    """

    node: str
    type: str
    variables: tuple[str, ...]
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dataflow:
    """uses: in forward order. gradient_order: variables, as their gradients get ready."""

    uses: tuple[Use, ...]
    gradient_order: tuple[str, ...]


def read_dataflow(nodes: Sequence[Any], gradients: Mapping[str, str], source: str) -> Dataflow:
    """The dataflow of a graph whose variable `name` has the gradient tensor `gradients[name]`.

    Nodes count in the order of the file where that is topological, as TensorFlow writes them: in
    the order in which the program made them. Otherwise breadth-first from those without inputs.
    A variable's first use is its first consumer that sees data (a weight penalty sees none); uses
    of the backward pass come later. The gradient of a tied embedding is a sum, so it comes last.

    Raises:
        InvalidInput: a tensor names no node, or the graph is too tangled.
    """
    graph = _Graph(nodes, source)
    first = {name: graph.first_use(graph.index(name)) for name in gradients}
    ready = {name: graph.index(tensor) for name, tensor in gradients.items()}
    place = sorted(first, key=lambda name: graph.position[first[name]])
    used: dict[int, list[str]] = {}
    for name in place:
        used.setdefault(first[name], []).append(name)
    users = list(used)
    upstream = graph.upstream(users)
    number = {user: i for i, user in enumerate(users)}
    uses = tuple(
        Use(
            nodes[user].name,
            nodes[user].op,
            tuple(used[user]),
            tuple(sorted(i for other in upstream[user] if (i := number[other]) < number[user])),
        )
        for user in users
    )
    late = {name: -i for i, name in enumerate(place)}
    order = sorted(place, key=lambda name: (graph.position[ready[name]], late[name]))
    return Dataflow(uses, tuple(order))


class _Graph:
    """Nodes by index, with their data edges, a topological order, and whether data reaches them."""

    def __init__(self, nodes: Sequence[Any], source: str) -> None:
        self.nodes, self.source = nodes, source
        self.by_name = {node.name: i for i, node in enumerate(nodes)}
        self.inputs = [
            [self.index(tensor) for tensor in node.input if not tensor.startswith("^")]
            for node in nodes
        ]
        self.outputs: list[list[int]] = [[] for _ in nodes]
        for node, read in enumerate(self.inputs):
            for other in read:
                self.outputs[other].append(node)
        self.order = self._topological()
        self.position = [0] * len(nodes)
        for place, node in enumerate(self.order):
            self.position[node] = place
        self.fed = self._fed()
        self.walked = 0

    def index(self, tensor: str) -> int:
        name = tensor.partition(":")[0]
        if name not in self.by_name:
            raise InvalidInput(
                f"{self.source}: {tensor[:80]!r} names no node of the graph.",
                thing=self.source,
                value=tensor[:80],
                remedy="The file is incomplete.",
            )
        return self.by_name[name]

    def _topological(self) -> list[int]:
        """Inputs first; nodes on a cycle (TensorFlow's loops) come last, as they were given."""
        if all(other < node for node, read in enumerate(self.inputs) for other in read):
            return list(range(len(self.nodes)))
        waiting = [len(read) for read in self.inputs]
        order = [node for node, count in enumerate(waiting) if not count]
        for node in order:
            for other in self.outputs[node]:
                waiting[other] -= 1
                if not waiting[other]:
                    order.append(other)
        return order + [node for node, count in enumerate(waiting) if count]

    def _fed(self) -> list[bool]:
        """Data comes from what has no input and is no constant: placeholders, iterators."""
        pairs = zip(self.nodes, self.inputs, strict=True)
        fed = [not read and node.op not in CONSTANT for node, read in pairs]
        for node in self.order:
            fed[node] = fed[node] or any(fed[other] for other in self.inputs[node])
        return fed

    def first_use(self, variable: int) -> int:
        """The variable's own node, where nothing uses it."""
        seen, open_nodes = {variable}, [variable]
        consumers: list[int] = []
        for node in open_nodes:  # grows meanwhile
            self.walked += len(self.outputs[node])
            self._check_paths(self.walked)
            for other in self.outputs[node]:
                if other in seen or self.nodes[other].op.startswith(UPDATES):
                    continue
                seen.add(other)
                (open_nodes if self.nodes[other].op in PASS_THROUGH else consumers).append(other)
        fed = [node for node in consumers if self.fed[node]]
        return min(fed or consumers or [variable], key=self.position.__getitem__)

    def upstream(self, users: Sequence[int]) -> dict[int, frozenset[int]]:
        """For each user, the users before it from which a way leads past no other."""
        mine = set(users)
        last = max(self.position[user] for user in users)
        reached: list[frozenset[int]] = [frozenset()] * len(self.nodes)
        found: dict[int, frozenset[int]] = {}
        entries = 0
        for node in self.order[: last + 1]:
            sets = {reached[other] for other in self.inputs[node]}
            joined = frozenset().union(*sets) if len(sets) > 1 else next(iter(sets), frozenset())
            entries += len(joined) if len(sets) > 1 else 0
            self._check_paths(entries)
            if node in mine:
                found[node] = joined
                joined = frozenset({node})
            reached[node] = joined
        return found

    def _check_paths(self, paths: int) -> None:
        if paths > MAX_PATHS:
            raise InvalidInput(
                f"{self.source}: its {len(self.nodes)} nodes are too tangled.",
                thing=self.source,
                value=len(self.nodes),
                remedy="Import a graph without its optimizer.",
            )


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
