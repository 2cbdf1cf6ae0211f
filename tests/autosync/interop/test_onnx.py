"""ONNX files beside the same modules recorded, and files that are damaged or hostile."""

import math
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.importing import import_module
from autosync.interop.onnx_graph import read_onnx_graph
from autosync.interop.onnx_values import OnnxValues, forward_flops
from tests.autosync.importing.graph_contract import assert_graph_contract
from tests.autosync.importing.modules import Tied
from tests.autosync.interop.onnx_files import OPSET, exported, model, node, numbers, value, weight

BATCH = 4


class Convolutions(nn.Module):
    """Strides, groups, padding, pools, a transposed convolution and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.last = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = self.pool(x + self.second(x))
        scores: torch.Tensor = self.last(torch.flatten(self.mean(self.up(x)), 1))
        return scores


class Encoder(nn.Module):
    """Attention with shapes that the graph computes."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(30, 8)
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 30)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.word(words)
        batch, length, width = x.shape
        query, key, value = self.qkv(self.norm(x)).split(width, dim=-1)
        query, key, value = (
            part.view(batch, length, 2, width // 2).transpose(1, 2) for part in (query, key, value)
        )
        weights = torch.softmax(query @ key.transpose(-2, -1), dim=-1)
        x = x + (weights @ value).transpose(1, 2).reshape(batch, length, width)
        scores: torch.Tensor = self.out(x)
        return scores


def words() -> torch.Tensor:
    return torch.zeros(BATCH, 5, dtype=torch.long)


MADE: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "convolutions": (Convolutions, lambda: torch.zeros(BATCH, 3, 16, 16)),
    "encoder": (Encoder, words),
    "tied": (Tied, words),
}


@cache
def both(name: str, **options: Any) -> tuple[ModelGraph, ModelGraph]:
    """Of the ONNX file, and of the module itself."""
    build, inputs = MADE[name]
    module = build()
    read = read_onnx_graph(exported(module, (inputs(),), **options), name, BATCH)
    assert not read.estimated
    recorded = import_module(
        module, (inputs(),), lambda outputs, *_: outputs.sum(), name=name, batch_size=BATCH
    )
    return read.graph, recorded


@pytest.mark.parametrize("name", MADE)
def test_an_exported_module_has_the_graph_of_the_module(name: str) -> None:
    read, recorded = both(name)
    assert_graph_contract(read, BATCH)
    ours = {variable.name: variable.elements for variable in read.variables}
    theirs = {variable.name: variable.elements for variable in recorded.variables}
    assert sorted(ours.values()) == sorted(theirs.values())
    forward, backward = (
        [sum(count(operation) for operation in graph.operations) for graph in (read, recorded)]
        for count in (attrgetter("forward_flops"), attrgetter("backward_flops"))
    )
    assert forward[0] == forward[1] > 0
    assert backward[0] == backward[1] > forward[0]
    sizes = [[g.variables[v].elements for v in g.gradient_order] for g in (read, recorded)]
    assert sizes[0][-1] == sizes[1][-1]


def test_names_and_order_are_the_modules() -> None:
    read, recorded = both("convolutions")
    assert {v.name for v in read.variables} == {v.name for v in recorded.variables}
    orders = [
        [g.variables[v].name.split(".")[0] for v in g.gradient_order] for g in (read, recorded)
    ]
    assert [*dict.fromkeys(orders[0])] == [*dict.fromkeys(orders[1])]


def test_without_weights() -> None:
    whole, _ = both("convolutions")
    bare, _ = both("convolutions", export_params=False, keep_initializers_as_inputs=True)
    assert {v.name: v.shape for v in bare.variables} == {v.name: v.shape for v in whole.variables}


def test_a_dynamic_batch_is_the_one_asked_for_and_another_than_a_fixed_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="exported at batch size 4, not 8"):
        read_onnx_graph(exported(Encoder(), (words(),)), "encoder", 8)
    dynamic = {"words": {0: "batch", 1: "tokens"}}
    data = exported(Encoder(), (words(),), input_names=["words"], dynamic_axes=dynamic)
    small, large = (read_onnx_graph(data, "encoder", size, 5).graph for size in (4, 12))
    assert_graph_contract(large, 12)
    flops = [sum(o.forward_flops for o in graph.operations) for graph in (small, large)]
    assert flops[1] == 3 * flops[0] > 0
    with pytest.raises(InvalidInput, match="'tokens' of input 'words' has no size"):
        read_onnx_graph(data, "encoder", 4)


LINEAR = node("MatMul", "x w", "y", "product")
X = (value("x", ("batch", 8)),)
GOOD = model((LINEAR,), X, (weight("w", 8, 16),))


def test_operations_that_are_not_known_are_listed_and_estimated() -> None:
    nodes = (
        LINEAR,
        node("Frobnicate", "y", "z", "odd", domain="my.own"),
        node("MatMul", "z v", "s"),
    )
    data = model(nodes, X, (weight("w", 8, 16), weight("v", 16, 2)))
    read = read_onnx_graph(data, "odd", BATCH)
    assert read.estimated == {"Frobnicate": 1}
    product, odd, last = read.graph.operations
    assert odd.type == "frobnicate"
    assert (odd.forward_flops, odd.output_bytes) == (0, product.output_bytes)
    assert last.forward_flops == 2 * BATCH * 16 * 2
    assert_graph_contract(read.graph, BATCH)


@pytest.mark.parametrize(
    ("equation", "sizes"),
    [("bi,io->bo", (8,)), ("bti, io -> bto", (6, 8)), ("...i,io->...o", (6, 8))],
)
def test_an_einsum_is_a_product(equation: str, sizes: tuple[int, ...]) -> None:
    """As torch's exporter writes `torch.einsum`."""
    nodes = (node("Einsum", "x w", "y", equation=equation),)
    data = model(nodes, (value("x", ("batch", *sizes)),), (weight("w", 8, 16),))
    read = read_onnx_graph(data, "einsum", BATCH)
    (product,) = read.graph.operations
    assert (product.type, read.estimated) == ("bmm", {})
    assert product.forward_flops == 2 * BATCH * math.prod(sizes) * 16
    assert product.backward_flops == product.forward_flops  # x is data


@pytest.mark.parametrize("heads", [(), (4, 2)])
def test_attention_is_two_products(heads: tuple[int, ...]) -> None:
    """Of heads apart, and side by side: 4 of queries, which share 2 of keys."""
    values = OnnxValues({"": 23})
    apart = {"q": (4, 6, 8), "k": (2, 5, 8), "v": (2, 5, 16)}
    beside = {"q": (6, 32), "k": (5, 16), "v": (5, 32)}
    for name, sizes in (beside if heads else apart).items():
        values.add(name, TensorProto.FLOAT, (BATCH, *sizes))
    counts: dict[str, Any] = dict(zip(("q_num_heads", "kv_num_heads"), heads, strict=False))
    fused = node("Attention", "q k v", "y", **counts)
    (shape,) = values.infer(fused)
    assert shape is not None
    assert forward_flops(fused, values, shape) == 2 * BATCH * 4 * 6 * 5 * (8 + 16)


@pytest.mark.parametrize(
    ("start", "end", "sizes"),
    [(0, None, (BATCH, 6, 8)), (1, 2, (6,)), (-3, -1, (BATCH, 6)), (-9, 1, (BATCH,))],
)
def test_a_part_of_a_shape(start: int, end: int | None, sizes: tuple[int, ...]) -> None:
    """As torch's exporter writes `x.shape[0]`: one number, of which a view makes its shape."""
    bounds: dict[str, Any] = {"start": start} if end is None else {"start": start, "end": end}
    nodes = (
        node("Shape", "x", "part", **bounds),
        node("Concat", "rest part", "sizes", axis=0),
        node("Reshape", "x sizes", "y"),
        node("MatMul", "y w", "z"),
    )
    weights = (weight("w", sizes[-1], 16), numbers("rest", -1))
    data = model(nodes, (value("x", ("batch", 6, 8)),), weights)
    (product,) = read_onnx_graph(data, "view", BATCH).graph.operations
    assert product.forward_flops == 2 * BATCH * 6 * 8 * 16


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ((node("Size", "x", "n"),), BATCH * 6 * 8),
        ((node("Shape", "x", "s"), node("Where", "no minus s", "n")), [BATCH, 6, 8]),
        ((node("Shape", "x", "s"), node("Slice", "s zero many zero two", "n")), [BATCH, 8]),
        ((node("Shape", "x", "s"), node("Div", "s two", "n")), [BATCH // 2, 3, 4]),
    ],
)
def test_numbers_that_a_graph_computes(nodes: tuple[Any, ...], expected: Any) -> None:
    values = OnnxValues({"": OPSET})
    values.add("x", TensorProto.FLOAT, (BATCH, 6, 8))
    for each in (numbers("minus", -1), numbers("zero", 0), numbers("many", 99), numbers("two", 2)):
        values.add_constant(each.name, each)
    values.infer(node("Equal", "two zero", "no"))
    for each in nodes:
        values.infer(each)
    assert values.numbers["n"].tolist() == expected


def test_weights_that_nodes_make_are_parameters() -> None:
    """The small models of onnx's own tests fill their weights from a shape each."""
    filled = ("w", "scale", "shift", "mean", "variance", "bias")
    inner = TensorProto(name="inner", dims=(5, 4), data_type=TensorProto.FLOAT16)
    nodes = (
        *(node("ConstantOfShape", f"{name}_shape", name) for name in filled),
        node("Constant", "", "v", value=inner),
        node("Identity", "w", "kernel"),
        node("Conv", "x kernel", "y"),
        node("BatchNormalization", "y scale shift mean variance", "z"),
        node("GlobalAveragePool", "z", "flat"),
        node("Flatten", "flat", "rows"),
        node("Gemm", "rows v bias", "s", transB=1),
    )
    shapes = [numbers("w_shape", 4, 3, 3, 3), numbers("bias_shape", 5)]
    shapes += [numbers(f"{name}_shape", 4) for name in ("scale", "shift", "mean", "variance")]
    data = model(nodes, (value("x", ("batch", 3, 8, 8)),), tuple(shapes))
    graph = read_onnx_graph(data, "light", BATCH).graph
    assert {v.name: (v.shape, v.dtype) for v in graph.variables} == {
        "w": ((4, 3, 3, 3), "float32"),
        "scale": ((4,), "float32"),
        "shift": ((4,), "float32"),
        "bias": ((5,), "float32"),
        "v": ((5, 4), "float16"),
    }
    assert_graph_contract(graph, BATCH)


def test_a_variable_used_twice_is_ready_last() -> None:
    nodes = (LINEAR, node("MatMul", "y v", "z"), node("MatMul", "z w", "s"))
    data = model(nodes, X, (weight("w", 8, 8), weight("v", 8, 8)))
    graph = read_onnx_graph(data, "twice", BATCH).graph
    assert [graph.variables[v].name for v in graph.gradient_order] == ["v", "w"]
    assert [v.factor_rows for v in graph.variables] == [0, BATCH]


def test_external_data_is_not_opened() -> None:
    """The shape is in the file, and no path that it names is followed."""
    outside = weight("w", 8, 16)
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="../../../etc/passwd")
    data = model((LINEAR,), X, (outside,))
    assert read_onnx_graph(data, "outside", BATCH).graph.parameters == 8 * 16


def test_without_the_package_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from importlib import util; util.find_spec = lambda name: None\n"
        "from autosync.errors import NotSupported\n"
        "try:\n    import autosync.interop.onnx_graph\n"
        "except NotSupported as error: print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'autosync[onnx]'" in found.stdout


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "holds no graph"),
        (b"not a model at all", "is damaged or no ONNX file"),
        (GOOD[: len(GOOD) // 2], "is damaged or no ONNX file"),
        (model((LINEAR,), X), "no trainable tensors"),
        (model((LINEAR,), (), (weight("w", 8, 16),)), "has no inputs"),
        (model((LINEAR,), X, (weight("w", 8, -1),)), "has the shape"),
        (model((LINEAR,), X, (weight("w", *[1 << 40] * 3),)), "has the shape"),
        (
            model((node("Relu", "x", "y"),), X, (weight("w", 8, 16),)),
            "no operation that reads a trainable tensor",
        ),
    ],
)
def test_bad_files_are_refused_by_name(data: bytes, why: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_onnx_graph(data, "bad", BATCH, source="bad.onnx")
    assert why in str(caught.value)
    assert "bad.onnx" in str(caught.value)
    assert caught.value.remedy


def test_a_file_of_endless_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosync.interop.onnx_graph.MAX_OPERATIONS", 1000)
    with pytest.raises(InvalidInput, match="2000 nodes, more than 1000"):
        read_onnx_graph(model([LINEAR] * 2000, X), "endless", BATCH)


def test_every_cut_of_a_file_is_refused() -> None:
    for end in range(len(GOOD)):
        with pytest.raises(InvalidInput):
            read_onnx_graph(GOOD[:end], "cut", BATCH)


def test_odd_attributes_make_an_estimate_and_no_crash() -> None:
    shape = numbers("shape", 0)
    for odd in (
        node("Reshape", "y shape", "z"),
        node("MaxPool", "y", "p", kernel_shape=(0, -3)),
        node("MaxPool", "y", "p", kernel_shape=(2, 2), strides=(0, 0)),
        node("Split", "", "z"),
        node("X", "y", ""),
        node("Shape", "y", "z", start=helper.make_tensor("t", TensorProto.FLOAT, (1,), (1.0,))),
    ):
        data = model((LINEAR, odd), X, (weight("w", 8, 16), shape))
        assert read_onnx_graph(data, "odd", BATCH).graph.parameters == 8 * 16
