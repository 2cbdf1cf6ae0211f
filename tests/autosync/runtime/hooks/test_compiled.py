"""torch.compile: still exact, and when gradients become ready under it."""

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
from torch.utils._python_dispatch import TorchDispatchMode

import autosync
from autosync.bundle import make_bundle
from autosync.runtime.attachment import attach
from autosync.strategy import Schedule
from tests.autosync.runtime.cases import (
    Case,
    domain,
    loss_of,
    make_model,
    make_optimizer,
    plan,
    strategy,
    train_reference,
    worst_difference,
)
from tests.autosync.runtime.ranks import Ranks
from tests.long_parameters import long_after

OVERLAP = Schedule("priority", slice_bytes=100, overlap_forward=True)
BACKEND = "aot_eager"
"""Compiles regions as the default backend does, without a C++ compiler."""

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.relu(block(x))
        return x


class Products(TorchDispatchMode):
    """Counts matrix products, which are the work of a backward pass here."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in PRODUCTS
        return func(*args, **(kwargs or {}))


def ready_at_half(model: nn.Module, network: Callable[[Tensor], Tensor]) -> float:
    """The part of the backward pass's work that is done when half of the bytes are ready."""
    ready: list[tuple[int, int]] = []
    products = Products()  # type: ignore[no-untyped-call]  # torch's class has no annotations
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: ready.append((products.count, p.nbytes)))
    loss = network(torch.randn(4, 16)).sum()
    with products:
        loss.backward()
    total, so_far = sum(size for _, size in ready), 0
    for done, size in ready:
        so_far += size
        if 2 * so_far >= total:
            return done / products.count
    raise AssertionError("no gradients")


def test_one_compiled_region_makes_gradients_ready_at_its_end() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        eager = Chain()
        assert ready_at_half(eager, eager) < 0.6
        whole = Chain()
        assert ready_at_half(whole, torch.compile(whole, backend=BACKEND)) == 1.0
        by_blocks = Chain()
        for block in by_blocks.blocks:
            block.compile(backend=BACKEND)
        assert ready_at_half(by_blocks, by_blocks) < 0.6


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


def steps(
    network: nn.Module, optimizer: torch.optim.Optimizer, rank: int, iterations: range
) -> None:
    for iteration in iterations:
        optimizer.zero_grad()
        loss_of(network, iteration, rank).backward()
        optimizer.step()


def trained(
    rank: int, world: int, way: str, moment: str, plans: tuple[int, ...], full: bool
) -> list[tuple[float, int, dict[str, int]]]:
    """The difference from torch's DDP of the eager model, how many graphs there are, and where the
    compiler broke one."""
    warnings.simplefilter("ignore")  # the compiler's own
    compiled, found = WAYS[way][0], []
    for case in (PLANS[number] for number in plans):
        plain = blocks_model()
        steps(DistributedDataParallel(plain), make_optimizer("sgd", plain), rank, range(5))
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
            steps(network, optimizer, rank, range(2))
        if moment != "before":
            network = compiled(model, backend, full)
        steps(network, optimizer, rank, range(2 if moment == "midway" else 0, 5))
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
    case = Case(method="ps")
    model = make_model(case.model)
    where = domain(model, world)
    given = make_bundle(strategy(case, where.graph, world), where)
    optimizer = make_optimizer(case.optimizer, model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network: Any = torch.compile(model, backend=BACKEND) if outside else model
        if not outside:
            model.compile(backend=BACKEND)
        caught.clear()
        network, optimizer = autosync.distribute(network, optimizer, given)
        warned = [str(warning.message) for warning in caught]
        for iteration in range(case.iterations):
            optimizer.zero_grad()
            loss_of(network, iteration, rank).backward()
            optimizer.step()
    model.state_dict()
    return worst_difference(model, train_reference(case, world)), warned


@pytest.mark.parametrize("wrapped", [True, False])
def test_the_user_is_told_that_overlap_is_lost(pair: Ranks, wrapped: bool) -> None:
    pair.run(settle)
    for worst, warned in pair.run(told, wrapped):
        assert worst < 2e-6
        assert len(warned) == 1
        assert "compiled as one region" in warned[0]
        assert "block.compile()" in warned[0]


def settle(rank: int, world: int) -> None:
    """Each rank is a host of its own, as the bundle says."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
