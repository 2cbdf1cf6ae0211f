"""Our graphs as AutoDist's graph items.

The messages are TensorFlow's, but the operations keep their PyTorch types: what reads a GraphDef
can read them, TensorFlow cannot run them.
"""

from autosync.errors import NotSupported
from autosync.graph import ModelGraph, Variable
from autosync.interop.autodist_messages import (
    DATA_TYPES,
    AnyMessage,
    AttrValue,
    Dim,
    GraphDef,
    GraphItem,
    Info,
    NodeDef,
    TensorShapeProto,
    VariableDef,
)
from autosync.interop.protobuf_records import encode
from autosync.interop.protobuf_wire import Window

BATCH = "batch"


def write_graph_item(graph: ModelGraph) -> bytes:
    """The graph with its variables, uses and the order in which gradients get ready.

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
    nodes = [NodeDef(BATCH, "Placeholder")]
    nodes += [node for variable in graph.variables for node in _variable_nodes(variable)]
    nodes += _forward_nodes(graph)
    backward, pairs = _gradient_nodes(graph, nodes[-1].name)
    item = GraphItem(
        _any("tensorflow.GraphDef", GraphDef((*nodes, *backward))),
        pairs,
        Info(
            tuple(
                _any("tensorflow.VariableDef", VariableDef(f"{variable.name}:0"))
                for variable in graph.variables
            )
        ),
    )
    return encode(item)


def _any(kind: str, message: object) -> AnyMessage:
    return AnyMessage(f"type.googleapis.com/{kind}", Window.of(encode(message)))


def _read_name(variable: Variable) -> str:
    return f"{variable.name}/Read/ReadVariableOp"


def _variable_nodes(variable: Variable) -> tuple[NodeDef, NodeDef]:
    dtype = _attribute(AttrValue(type=DATA_TYPES[variable.dtype]))
    shape = TensorShapeProto(tuple(Dim(size) for size in variable.shape))
    attributes = {"dtype": dtype, "shape": _attribute(AttrValue(shape=shape))}
    return (
        NodeDef(variable.name, "VarHandleOp", attr=attributes),
        NodeDef(_read_name(variable), "ReadVariableOp", (variable.name,), attr={"dtype": dtype}),
    )


def _attribute(value: AttrValue) -> Window:
    return Window.of(encode(value))


def _forward_nodes(graph: ModelGraph) -> list[NodeDef]:
    """One node an operation, after all it reads; the first ones read the batch."""
    names = [
        f"forward/{i}/{operation.name.replace(':', '_')}"
        for i, operation in enumerate(graph.operations)
    ]
    nodes = []
    for name, operation in zip(names, graph.operations, strict=True):
        data = tuple(names[i] for i in operation.inputs) or (BATCH,)
        reads = tuple(_read_name(graph.variables[i]) for i in operation.variables)
        nodes.append(NodeDef(name, operation.type, data + reads))
    return nodes


def _gradient_nodes(graph: ModelGraph, last: str) -> tuple[list[NodeDef], dict[str, str]]:
    """The chain of gradients, and which belongs to which variable."""
    nodes: list[NodeDef] = []
    pairs: dict[str, str] = {}
    for index in graph.gradient_order:
        variable = graph.variables[index]
        name = f"gradients/{variable.name}"
        parts = ("indices", "values", "dense_shape") if variable.sparse else ("dense",)
        made = [NodeDef(f"{name}/{part}", "Gradient", (last,)) for part in parts]
        nodes += made
        pairs[";".join(f"{node.name}:0" for node in made)] = f"{variable.name}:0"
        last = made[-1].name if not variable.sparse else made[1].name
    return nodes, pairs
