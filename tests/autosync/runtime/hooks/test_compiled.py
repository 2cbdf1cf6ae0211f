"""Under torch.compile plans stay exact, and graphs whole."""

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.runtime.attachment import attach
from tests.autosync.runtime import rows
from tests.autosync.runtime.cases import (
    Case,
    iterate,
    make_model,
    make_optimizer,
    plan,
    train_reference,
    worst_difference,
)
from tests.autosync.runtime.compression.test_factors import Net, choose, loss
from tests.autosync.runtime.distributing import bundle_of
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP
from tests.long_parameters import long_after

BACKEND = "aot_eager"
"""Compiles regions as the default backend does, without a C++ compiler."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


class Blocks(nn.Module):
    """Three blocks with buffers of their own, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def blocks_model() -> nn.Module:
    torch.manual_seed(3)
    return Blocks()


Compile = Callable[[nn.Module, Callable[..., Any], bool], nn.Module]
"""From (model, backend, fullgraph) to what the script calls."""


def in_place(model: nn.Module, backend: Callable[..., Any], full: bool) -> nn.Module:
    model.compile(backend=backend, fullgraph=full)
    return model


def wrapped(model: nn.Module, backend: Callable[..., Any], full: bool) -> nn.Module:
    made = torch.compile(model, backend=backend, fullgraph=full)
    assert isinstance(made, nn.Module)
    return made


def each_in_place(model: nn.Module, backend: Callable[..., Any], full: bool) -> nn.Module:
    for block in model.get_submodule("blocks").children():
        block.compile(backend=backend, fullgraph=full)
    return model


def each_wrapped(model: nn.Module, backend: Callable[..., Any], full: bool) -> nn.Module:
    blocks = model.get_submodule("blocks")
    for name, block in list(blocks.named_children()):
        blocks._modules[name] = wrapped(block, backend, full)
    return model


def called_by_a_function(model: nn.Module, backend: Callable[..., Any], full: bool) -> nn.Module:
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        run = staticmethod(torch.compile(lambda x: model(x), backend=backend, fullgraph=full))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.run(x)
            return out

    return Called()


WAYS: dict[str, tuple[Compile, int]] = {
    "in place": (in_place, 1),
    "wrapped": (wrapped, 1),
    "each in place": (each_in_place, 2),
    "each wrapped": (each_wrapped, 2),
    "by a function": (called_by_a_function, 1),
}
"""And the graphs that torch makes of it: the input of the first block has no gradient."""

BEFORE = ("in place", "wrapped", "each in place", "each wrapped")
PLANS = (
    Case(optimizer="adamw"),
    Case(method="mixed", partition="even", groups=4, schedule=OVERLAP),
    Case(method="zero", schedule=OVERLAP),
)


def trained(
    rank: int, world: int, way: str, moment: str, plans: tuple[int, ...], full: bool
) -> list[tuple[float, int, dict[str, int]]]:
    """The difference from torch's DDP of the eager model, how many graphs there are, and where the
    compiler broke one."""
    warnings.simplefilter("ignore")  # the compiler's own
    compiled, found = WAYS[way][0], []
    for case in (PLANS[number] for number in plans):
        plain = blocks_model()
        iterate(DistributedDataParallel(plain), make_optimizer("sgd", plain), rank, range(5))
        torch._dynamo.reset()
        counters.clear()
        graphs: list[int] = []

        def backend(graph: Any, inputs: Any, graphs: list[int] = graphs) -> Any:
            graphs.append(1)
            return lookup_backend(BACKEND)(graph, inputs)

        model = network = blocks_model()
        optimizer = make_optimizer("sgd", model)
        names = tuple(name for name, _ in model.named_parameters())
        made = plan(case, model, world)
        if moment == "before":
            network = compiled(model, backend, full)
            names = tuple(name for name, _ in model.named_parameters())
        called = network if way == "wrapped" and moment == "before" else None
        attachment = attach(model, optimizer, made, names, called=called)
        if moment == "midway":
            iterate(network, optimizer, rank, range(2))
        if moment != "before":
            network = compiled(model, backend, full)
        iterate(network, optimizer, rank, range(2 if moment == "midway" else 0, 5))
        attachment.detach()
        broken = dict(counters["graph_break"])
        found.append((worst_difference(model, plain), len(graphs), broken))
    warnings.simplefilter("error")
    return found


COMPILED = (
    *((way, "before") for way in BEFORE[::2]),
    *((way, "behind") for way in (*BEFORE[1::2], "by a function")),
    ("each in place", "midway"),
    *((way, "before") for way in BEFORE[1::2]),
    *((way, "behind") for way in BEFORE[::2]),
)
ONE = [(*each, (number % len(PLANS),)) for number, each in enumerate(COMPILED)]
OTHERS = [(way, moment, tuple({*range(len(PLANS))} - {*one})) for way, moment, one in ONE]
"""In `make test` each way meets one of the plans at one of the moments, taken in turn."""


@pytest.mark.parametrize("full", long_after(1, [False, True]))
@pytest.mark.parametrize(("way", "moment", "plans"), long_after(len(WAYS) + 1, ONE + OTHERS))
def test_compiled_models_stay_exact_and_whole(
    pair: Ranks, way: str, moment: str, plans: tuple[int, ...], full: bool
) -> None:
    for found in pair.run(trained, way, moment, plans, full):
        assert max(worst for worst, _, _ in found) < 2e-6, found
        assert max(graphs for _, graphs, _ in found) <= WAYS[way][1], found
        assert not any(broken for _, _, broken in found), found


def told(rank: int, world: int, outside: bool) -> tuple[float, list[str]]:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    case = Case(method="ps")
    model = make_model(case.model)
    given = bundle_of(case, model, world)
    optimizer = make_optimizer(case.optimizer, model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network: Any = torch.compile(model, backend=BACKEND) if outside else model
        if not outside:
            model.compile(backend=BACKEND)
        caught.clear()
        network, optimizer = autosync.distribute(network, optimizer, given)
        warned = [str(warning.message) for warning in caught]
        iterate(network, optimizer, rank, range(case.iterations))
    model.state_dict()
    return worst_difference(model, train_reference(case, world)), warned


@pytest.mark.parametrize("wrapped", [True, False])
def test_the_user_is_told_that_overlap_is_lost(pair: Ranks, wrapped: bool) -> None:
    for worst, warned in pair.run(told, wrapped):
        assert worst < 2e-6
        assert len(warned) == 1
        assert "compiled as one region" in warned[0]
        assert "block.compile()" in warned[0]


def by_factors(rank: int, world: int) -> tuple[float, int]:
    """The difference from eager training, and how many graphs there are."""
    warnings.simplefilter("ignore")  # the compiler's own
    torch._dynamo.reset()
    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(1)
        return lookup_backend(BACKEND)(graph, inputs)

    model, alone = Net(), Net()
    optimizer, beside = make_optimizer("sgd", model), make_optimizer("sgd", alone)
    model.compile(backend=backend)
    attachment = rows.attached(model, optimizer, rows.plan(model, world, choose))
    rows.train(model, optimizer, loss, 3, rank)
    attachment.detach()
    rows.train_alone(alone, beside, loss, 3, rows.shares_of(world, even=True))
    warnings.simplefilter("error")
    return worst_difference(model, alone), len(graphs)


def test_graphs_break_at_layers_that_hand_factors_over(pair: Ranks) -> None:
    """What is between them is compiled."""
    for worst, graphs in pair.run(by_factors):
        assert worst < 2e-6
        assert graphs > 0
