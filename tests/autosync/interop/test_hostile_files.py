"""Files that are small to send and dear to read: refused, within bounds of memory, or read at once.

A bound that is missing shows as a test that does not end.
"""

import pytest
from onnx import TensorProto

from autosync.errors import LONGEST_MESSAGE, InvalidInput
from autosync.extensions.compilation.document import CompiledRegions
from autosync.interop.autodist_graph import read_graph_item
from autosync.interop.host_list import expand_nodelist, read_hostfile
from autosync.interop.nccl_tests import TIMESTAMP
from autosync.interop.onnx_graph import read_onnx_graph
from autosync.nccl_knobs import NcclKnobs, NcclRange
from autosync.torch_engine import FullyShard
from tests.autosync.interop.onnx_files import model, node, numbers, value, weight
from tests.autosync.interop.test_graph_items import FLOAT, Written

LINEAR = node("MatMul", "x w", "y", "product")
X = (value("x", ("batch", 8)),)
W = weight("w", 8, 16)


def test_variables_behind_one_long_chain_are_too_tangled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is looked for through all of it."""
    count = 300
    monkeypatch.setattr("autosync.interop.autodist_graph.MAX_PATHS", 30_000)
    written = Written()
    del written.item.grad_target_pairs[:]
    for i in range(count):
        written.variable(f"v{i}", (2,), FLOAT)
    written.node("i0", "Identity", *(f"v{i}" for i in range(count)))
    for i in range(1, count):
        written.node(f"i{i}", "Identity", f"i{i - 1}")
    written.node("g", "Neg", f"i{count - 1}")
    for i in range(count):
        written.gradient(f"g:{i}", f"v{i}:0")
    with pytest.raises(InvalidInput, match="too tangled"):
        read_graph_item(written.bytes(), "tangled", 8)


def test_large_files_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosync.interop.autodist_graph.MAX_GRAPH_BYTES", 100)
    with pytest.raises(InvalidInput, match="more than 100"):
        read_graph_item(Written().bytes(), "large", 8)


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
    weights = (W, *(weight(f"w{i}", 8) for i in range(10_000)))
    assert read_onnx_graph(model((LINEAR,), X, weights), "many", 4).graph.parameters == 8 * 16


def test_absurd_amounts_of_work_are_refused() -> None:
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


def test_unknown_fields_of_a_graph_are_skipped() -> None:
    """Field 12, of eight bytes."""
    written = Written().bytes() + b"\x61" + bytes(8)
    assert read_graph_item(written, "plain", 8, 5).graph == (
        read_graph_item(Written().bytes(), "plain", 8, 5).graph
    )


def test_long_runs_of_blanks_are_read_in_one_go() -> None:
    line = f"a{' ' * 900_000}b"
    assert TIMESTAMP.sub("", line) == line
    with pytest.raises(InvalidInput, match="cannot read 'b'"):
        read_hostfile(line, "hosts")
    with pytest.raises(InvalidInput, match="is no host's name"):
        expand_nodelist("a[0-4095]" + "b[0]" * 200_000)


def test_long_lists_of_names_are_checked_in_one_go() -> None:
    names = tuple(f"m{i}" for i in range(300_000))
    assert CompiledRegions((names,)).begins_with == ("m0",)
    assert FullyShard((names,), 2).unit_of("m7.weight") == 0
    ranges = tuple(NcclRange("reduce", "Ring", "LL", least_bytes=i) for i in range(100_000))
    assert NcclKnobs(ranges).of_operation("reduce") == ranges
