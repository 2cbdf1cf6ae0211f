"""AutoDist's graph items, written by the protobuf library."""

from typing import Any

import pytest

from autosync.errors import InvalidInput
from autosync.interop.autodist_graph import read_graph_item
from tests.autosync.interop.protos import P

FLOAT, HALF, INT32 = 1, 19, 3


def wrapped(kind: str, message: Any) -> Any:
    url = f"type.googleapis.com/tensorflow.{kind}"
    return P["Any"](type_url=url, value=message.SerializeToString())


class GraphItemWriter:
    """Nodes of a TensorFlow graph; their order is that of the program."""

    def __init__(self) -> None:
        self.graph, self.item = P["GraphDef"](), P["GraphItem"]()

    def variable(self, name: str, shape: tuple[int, ...], dtype: int) -> None:
        node = self.node(name, "VarHandleOp")
        node.attr.add(key="container").value.s = b""
        node.attr.add(key="dtype").value.type = dtype
        stated = node.attr.add(key="shape").value.shape
        stated.SetInParent()
        for size in shape:
            stated.dim.add(size=size)
        self.node(f"{name}/Read", "ReadVariableOp", name)
        definition = P["VariableDef"](variable_name=f"{name}:0", trainable=True)
        self.item.info.variables.append(wrapped("VariableDef", definition))

    def node(self, name: str, op: str, *inputs: str) -> Any:
        return self.graph.node.add(name=name, op=op, input=inputs)

    def gradient(self, tensor: str, variable: str) -> None:
        self.item.grad_target_pairs.add(key=tensor, value=variable)

    def bytes(self) -> bytes:
        self.item.graph_def.CopyFrom(wrapped("GraphDef", self.graph))
        data: bytes = self.item.SerializeToString()
        return data


class Written(GraphItemWriter):
    """A tied embedding, a weight penalty, and optimizer nodes, as TensorFlow makes them."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape, dtype in (
            ("step", (), INT32),
            ("embedding", (50, 8), FLOAT),
            ("dense/bias", (8,), HALF),
            ("dense/kernel", (8, 8), FLOAT),
        ):
            self.variable(name, shape, dtype)
        self.node("ids", "Placeholder")
        self.node("lookup", "ResourceGather", "embedding", "ids")
        self.node("penalty", "L2Loss", "dense/kernel/Read")
        self.node("dense/MatMul", "MatMul", "lookup", "dense/kernel/Read")
        self.node("dense/BiasAdd", "BiasAdd", "dense/MatMul", "dense/bias/Read", "^penalty")
        self.node("logits", "MatMul", "dense/BiasAdd:0", "embedding/Read")
        self.node("grad/logits", "MatMul", "logits", "embedding/Read")
        self.node("grad/bias", "BiasAddGrad", "grad/logits")
        self.node("grad/matmul", "MatMul", "grad/logits", "dense/kernel/Read")
        self.node("grad/kernel", "AddN", "grad/matmul", "penalty")
        self.node("grad/indices", "ConcatV2", "grad/matmul", "ids")
        self.node("grad/values", "ConcatV2", "grad/matmul", "grad/logits")
        self.node("grad/shape", "Const")
        self.node("Adam/kernel", "ResourceApplyAdam", "dense/kernel", "grad/kernel")
        self.gradient("grad/kernel:0", "dense/kernel:0")
        self.gradient("grad/bias:0", "dense/bias:0")
        self.gradient("grad/indices:0;grad/values:0;grad/shape:0", "embedding:0")


def test_variables_uses_and_gradients() -> None:
    read = read_graph_item(Written().bytes(), "tied", 16, touched_rows=5)
    assert read.without_gradient == {"step"}
    graph = read.graph
    assert [(v.name, v.shape, v.dtype, v.sparse, v.touched_rows) for v in graph.variables] == [
        ("embedding", (50, 8), "float32", True, 5),
        ("dense/bias", (8,), "float16", False, 0),
        ("dense/kernel", (8, 8), "float32", False, 0),
    ]
    assert [(o.name, o.type, o.variables, o.inputs) for o in graph.operations] == [
        ("lookup", "ResourceGather", (0,), ()),
        ("dense/MatMul", "MatMul", (2,), (0,)),
        ("dense/BiasAdd", "BiasAdd", (1,), (1,)),
    ]
    assert graph.gradient_order == (1, 2, 0)
    assert graph.backward_order == (2, 1, 0)
    assert graph.operations[1].forward_flops == 2 * 16 * 64
    assert graph.batch_size == 16


def test_an_unordered_file_says_the_same() -> None:
    written = Written()
    nodes = list(written.graph.node)
    del written.graph.node[:]
    written.graph.node.extend(reversed(nodes))
    graph = read_graph_item(written.bytes(), "tied", 16, touched_rows=5).graph
    assert [operation.name for operation in graph.operations] == [
        "lookup",
        "dense/MatMul",
        "dense/BiasAdd",
    ]
    assert graph.gradient_order[0] == 1


def test_touched_rows_must_be_stated() -> None:
    with pytest.raises(InvalidInput, match=r"'embedding' .* does not say how many rows"):
        read_graph_item(Written().bytes(), "tied", 16)
    graph = read_graph_item(Written().bytes(), "tied", 16, {"embedding": 70}).graph
    assert graph.variables[0].touched_rows == 50


def test_an_update_of_rows_makes_a_gradient_sparse() -> None:
    written = Written()
    written.node("Adam/rows", "ResourceSparseApplyAdam", "dense/kernel", "grad/kernel")
    graph = read_graph_item(written.bytes(), "tied", 16, 5).graph
    assert [variable.sparse for variable in graph.variables] == [True, False, True]


def embedding(written: Written, attribute: int) -> Any:
    """What an attribute of the node of variable `embedding` holds: 1 is its dtype, 2 its shape."""
    return written.graph.node[2].attr[attribute].value


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda w: setattr(w.item.grad_target_pairs[0], "key", "nowhere:0"),
            "'nowhere:0' names no node",
        ),
        (lambda w: w.item.info.ClearField("variables"), "no definition of it"),
        (
            lambda w: w.item.info.variables.append(wrapped("SaverDef", P["VariableDef"]())),
            "a VariableDef is due, not 'tensorflow.SaverDef'",
        ),
        (lambda w: setattr(embedding(w, 2).shape.dim[0], "size", -1), "'embedding' has the shape"),
        (
            lambda w: setattr(embedding(w, 2).shape.dim[0], "size", 1 << 62),
            "'embedding' has the shape",
        ),
        (
            lambda w: setattr(embedding(w, 1), "type", INT32),
            "'embedding' has no floating-point dtype",
        ),
        (lambda w: embedding(w, 2).ClearField("shape"), "'embedding' has no shape"),
        (lambda w: w.node("lookup", "Identity"), "names two nodes alike"),
        (lambda w: w.item.ClearField("grad_target_pairs"), "maps no gradient"),
    ],
)
def test_missing_and_wrong_fields_are_named(change: Any, why: str) -> None:
    written = Written()
    change(written)
    with pytest.raises(InvalidInput, match=why):
        read_graph_item(written.bytes(), "tied", 16, touched_rows=5)
