"""Files that are small to send and dear to read: refused, within bounds of memory, or read at once.

A bound that is missing shows as a test that does not end.
"""

import tracemalloc
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
from onnx import TensorProto

from autosync.errors import LONGEST_MESSAGE, InvalidInput
from autosync.interop.autodist_messages import (
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
from autosync.interop.graph_item import read_graph_item
from autosync.interop.onnx_graph import read_onnx_graph
from autosync.interop.protobuf_records import encode
from autosync.interop.protobuf_wire import Window, Wire, tagged
from tests.autosync.interop.onnx_files import model, node, numbers, value, weight

VALUES = 200_000
LINEAR = node("MatMul", "x w", "y", "product")
X = (value("x", ("batch", 8)),)
W = weight("w", 8, 16)


def wrapped(cls: type, data: bytes) -> AnyMessage:
    return AnyMessage(f"type.googleapis.com/tensorflow.{cls.__name__}", Window.of(data))


def peak_bytes_of_refusal(data: bytes, words: str) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=words):
            read_graph_item(data, "hostile", 8)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("field", [b"\x0a\x00", b"\x18\x00"], ids=["nodes", "unknown"])
def test_endless_fields_end_where_their_memory_does(
    field: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bytes each; those of an unknown number are skipped, but not for nothing."""
    monkeypatch.setattr("autosync.interop.graph_item.MAX_GRAPH_VALUES", VALUES)
    item = encode(GraphItem(wrapped(GraphDef, field * 1_000_000)))
    assert peak_bytes_of_refusal(item, f"more than {VALUES} values") < 60 * VALUES


def test_messages_in_messages_share_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosync.interop.graph_item.MAX_GRAPH_VALUES", VALUES)
    some = b"\x18\x00" * (VALUES // 8)  # unknown to a VariableDef
    definitions = tuple(wrapped(VariableDef, some) for _ in range(10))
    item = GraphItem(wrapped(GraphDef, b""), {"g:0": "v:0"}, Info(definitions))
    assert peak_bytes_of_refusal(encode(item), f"more than {VALUES} values") < 60 * VALUES


def test_variables_behind_one_long_chain_are_too_tangled() -> None:
    """Each is looked for through all of it."""
    count = 4000
    shape = encode(AttrValue(0, TensorShapeProto((Dim(2),))))
    attributes = {"dtype": Window.of(encode(AttrValue(1))), "shape": Window.of(shape)}
    names = [f"v{i}" for i in range(count)]
    nodes = [NodeDef(name, "VarHandleOp", (), "", attributes) for name in names]
    nodes.append(NodeDef("i0", "Identity", tuple(names)))
    nodes += [NodeDef(f"i{i}", "Identity", (f"i{i - 1}",)) for i in range(1, count)]
    nodes.append(NodeDef("g", "Neg", (f"i{count - 1}",)))
    definitions = tuple(wrapped(VariableDef, encode(VariableDef(f"{name}:0"))) for name in names)
    pairs = {f"g:{i}": f"{name}:0" for i, name in enumerate(names)}
    graph = wrapped(GraphDef, encode(GraphDef(tuple(nodes))))
    with pytest.raises(InvalidInput, match="too tangled"):
        read_graph_item(encode(GraphItem(graph, pairs, Info(definitions))), "tangled", 8)


def test_numbers_that_double_their_digits_stay_64_bits() -> None:
    squares = [node("Mul", f"n{i} n{i}", f"n{i + 1}") for i in range(300)]
    nodes = (LINEAR, *squares, node("Reshape", "y n300", "z"))
    read = read_onnx_graph(model(nodes, X, (W, numbers("n0", 3, 5))), "squares", 4)
    assert read.graph.parameters == 8 * 16


def test_a_shape_of_a_million_dimensions_is_none() -> None:
    many = TensorProto(name="n0", dims=(1 << 40,) * 100_000, data_type=TensorProto.INT64)
    axes = numbers("axes", *range(60))
    nodes = (
        LINEAR,
        node("Relu", "n0", "n1"),
        *(node("Unsqueeze", f"u{i} axes" if i else "y axes", f"u{i + 1}") for i in range(50)),
    )
    read = read_onnx_graph(model(nodes, X, (W, many, axes)), "wide", 4)
    assert read.graph.parameters == 8 * 16
    with pytest.raises(InvalidInput, match="input 'x' has 70 dimensions"):
        read_onnx_graph(model((LINEAR,), (value("x", (4,) * 70),), (W,)), "deep", 4)


def test_very_many_tensors_are_read_in_one_go() -> None:
    weights = (W, *(weight(f"w{i}", 8) for i in range(150_000)))
    assert read_onnx_graph(model((LINEAR,), X, weights), "many", 4).graph.parameters == 8 * 16


def test_what_no_model_computes_is_refused() -> None:
    weights = (weight("w", 1 << 23, 1 << 23), weight("v", 1 << 23, 1 << 23))
    nodes = (LINEAR, node("MatMul", "y v", "z"))
    with pytest.raises(InvalidInput, match="FLOPs or bytes that no model has"):
        read_onnx_graph(model(nodes, (value("x", (1 << 20, 1 << 23)),), weights), "huge", 1 << 20)


def test_a_large_result_of_small_numbers_is_not_computed() -> None:
    nodes = (LINEAR, node("ConstantOfShape", "n0", "n1"), node("Reshape", "y n1", "z"))
    with pytest.raises(InvalidInput, match="value 'n1' has the shape"):
        read_onnx_graph(model(nodes, X, (W, numbers("n0", 1 << 30, 1 << 30))), "large", 4)


def test_a_refusal_of_a_long_name_is_short() -> None:
    data = model((LINEAR,), (value("x" * 1_000_000, ("batch", "length")),), (W,))
    with pytest.raises(InvalidInput) as caught:
        read_onnx_graph(data, "named", 4)
    assert len(caught.value.message) <= LONGEST_MESSAGE


@dataclass(frozen=True, slots=True)
class Unlike:
    """A message with more than the reader knows."""

    other: Annotated[int, 9] = 0
    OPEN: ClassVar[bool] = True


def test_unknown_fields_are_skipped() -> None:
    data = encode(GraphDef((NodeDef("n", "Relu"),))) + encode(Unlike(3))
    data += tagged(12, Wire.FIXED64, b"\x00" * 8)
    with pytest.raises(InvalidInput, match="maps no gradient"):
        read_graph_item(encode(GraphItem(wrapped(GraphDef, data))), "plain", 8)
