"""Batched evaluation is exact: outputs and every gradient are those of a vertex at a time."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from autosync.errors import InvalidInput
from autosync.extensions.dynamic.input_graphs import InputGraphs, chains, graphs_of_children
from autosync.extensions.dynamic.lstm import ChildSumTreeLSTM, SequenceLSTM
from autosync.extensions.dynamic.vertex_function import VertexFunction, Vertices
from tests.autosync.extensions.dynamic.drawn_graphs import (
    random_acyclic,
    random_binary_trees,
    random_chains,
    random_trees,
)
from tests.autosync.extensions.dynamic.unbatched import evaluate_unbatched
from tests.autosync.runtime.distributing import largest_difference

INPUTS, CELLS = 5, 4
TOLERANCE = 1e-10

Drawn = Callable[[np.random.Generator, int, int], InputGraphs]

MODELS: dict[str, tuple[type[VertexFunction], Drawn]] = {
    "child-sum over trees": (ChildSumTreeLSTM, random_trees),
    "child-sum over binary trees": (ChildSumTreeLSTM, random_binary_trees),
    "child-sum over acyclic graphs": (ChildSumTreeLSTM, random_acyclic),
    "sequences": (SequenceLSTM, random_chains),
}


def made(kind: Callable[..., VertexFunction]) -> VertexFunction:
    torch.manual_seed(3)
    return kind(INPUTS, CELLS).double()


def inputs_of(graphs: InputGraphs, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (graphs.vertices, INPUTS)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def gradients(model: nn.Module, external: Tensor, outputs: Tensor) -> dict[str, Tensor]:
    """Of a loss that weighs every number of the outputs in its own way."""
    named = dict(model.named_parameters())
    weights = torch.linspace(-1, 2, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    loss = (outputs * weights).sum() + outputs.square().sum()
    found = torch.autograd.grad(loss, [external, *named.values()])
    return dict(zip(["external", *named], found, strict=True))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(2))
def test_forward_and_gradients_are_those_of_a_vertex_at_a_time(name: str, seed: int) -> None:
    kind, drawn = MODELS[name]
    graphs = drawn(np.random.default_rng(seed), 5, 12)
    model, external = made(kind), inputs_of(graphs, seed)
    batched, single = model(graphs, external), evaluate_unbatched(model, graphs, external)
    assert float((batched - single).detach().abs().max()) < TOLERANCE
    differences = gradients(model, external, batched), gradients(model, external, single)
    assert largest_difference(*differences) < TOLERANCE


def test_sequences_are_those_of_torch() -> None:
    lengths = [3, 7, 1, 7, 4]
    graphs = chains(lengths)
    external = inputs_of(graphs)
    model = made(SequenceLSTM)
    torchs = nn.LSTM(INPUTS, CELLS).double()
    torchs.load_state_dict(model.state_dict())
    packed = pack_sequence(list(external.split(lengths)), enforce_sorted=False)
    expected = torch.cat(unpack_sequence(torchs(packed)[0]))
    outputs = model(graphs, external)
    assert float((outputs - expected).detach().abs().max()) < TOLERANCE
    differences = gradients(model, external, outputs), gradients(torchs, external, expected)
    assert largest_difference(*differences) < TOLERANCE


def test_frozen_parameters_get_no_gradient() -> None:
    graphs = random_trees(np.random.default_rng(2), 3, 6)
    torch.manual_seed(3)
    model = ChildSumTreeLSTM(INPUTS, CELLS).double()
    external = inputs_of(graphs)
    model.forget.requires_grad_(False)
    model.input.requires_grad_(False)
    model(graphs, external.detach()).sum().backward()
    assert model.forget.weight.grad is None
    assert model.input.weight.grad is None
    trained = [model.recurrent.weight, external]
    found = torch.autograd.grad(model(graphs, external).square().sum(), trained)
    single = evaluate_unbatched(model, graphs, external)
    wanted = torch.autograd.grad(single.square().sum(), trained)
    assert all(torch.allclose(a, b, atol=TOLERANCE) for a, b in zip(found, wanted, strict=True))


def test_without_gradients_nothing_is_kept() -> None:
    graphs = random_trees(np.random.default_rng(2), 3, 6)
    model, external = made(ChildSumTreeLSTM), inputs_of(graphs)
    expected = model(graphs, external)
    with torch.no_grad():
        outputs = model(graphs, external)
    assert not outputs.requires_grad
    assert torch.equal(outputs, expected)
    with torch.inference_mode():
        assert torch.equal(model(graphs, external), expected)


def test_under_autocast_gradients_are_close() -> None:
    graphs = random_trees(np.random.default_rng(2), 3, 6)
    model = made(ChildSumTreeLSTM).float()
    external = inputs_of(graphs).detach().float().requires_grad_()
    expected = gradients(model, external, model(graphs, external))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(graphs, external)
    found = gradients(model, external, outputs.float())
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        assert float((gradient - expected[name]).norm()) < 0.1 * float(expected[name].norm())


def test_an_input_for_each_vertex_is_asked_for() -> None:
    with pytest.raises(InvalidInput, match="one row for each vertex") as refused:
        made(SequenceLSTM)(chains([3]), inputs_of(chains([4])))
    assert refused.value.value == (4, INPUTS)


def test_backward_passes_may_be_repeated() -> None:
    model, external = made(SequenceLSTM), inputs_of(chains([3]))
    loss = model(chains([3]), external).sum()
    loss.backward(retain_graph=True)
    first = {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.autograd.grad(loss, [next(model.parameters())], retain_graph=True)
    model.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        before = first[name]
        assert parameter.grad is not None
        assert before is not None
        assert before is not parameter.grad
        assert torch.equal(parameter.grad, before)


def test_too_many_children_are_refused() -> None:
    graphs = graphs_of_children([[[], [], [0, 1]]])
    with pytest.raises(InvalidInput, match="has 2 children, SequenceLSTM gathers from 1"):
        made(SequenceLSTM)(graphs, inputs_of(graphs))


class Faulty(VertexFunction):
    def __init__(self, fault: str):
        super().__init__(state_size=INPUTS)
        self.scale = nn.Parameter(torch.ones(()))
        self.fault = fault

    def vertex(self, vertices: Vertices) -> None:
        x = vertices.pull() * self.scale
        if self.fault == "narrow state":
            vertices.scatter(x[:, :2])
        if self.fault == "two states":
            vertices.scatter(x)
            vertices.scatter(x)
        if self.fault == "two pushes":
            vertices.push(x)
        if self.fault == "one row":
            vertices.push(x[:1])
        if self.fault != "no push":
            vertices.push(x)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("narrow state", "scattered a state of shape"),
        ("two states", "scattered twice"),
        ("two pushes", "pushed twice"),
        ("one row", "pushed an output of shape"),
        ("no push", "pushed nothing"),
    ],
)
def test_a_vertex_function_that_cannot_be_is_refused(fault: str, words: str) -> None:
    graphs = chains([2, 3])
    with pytest.raises(InvalidInput, match=words):
        Faulty(fault).double()(graphs, inputs_of(graphs))
