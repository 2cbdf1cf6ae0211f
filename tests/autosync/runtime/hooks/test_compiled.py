"""torch.compile: still exact, and when gradients become ready under it."""

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import autosync
from autosync.bundle import make_bundle
from autosync.strategy import Schedule
from tests.autosync.runtime.cases import (
    Case,
    attached,
    domain,
    loss_of,
    make_model,
    make_optimizer,
    strategy,
    train_reference,
    worst_difference,
)
from tests.autosync.runtime.ranks import Ranks

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


def trained(rank: int, world: int, how: str) -> float:
    warnings.simplefilter("ignore")  # the compiler's own
    torch._dynamo.reset()
    case = Case(method="mixed", partition="even", groups=4, schedule=OVERLAP)
    model = make_model(case.model)
    if how == "in place":
        model.compile(backend=BACKEND)
    if how == "by blocks":
        for block in model.children():
            block.compile(backend=BACKEND)
    _, optimizer, attachment = attached(case, world, model=model)
    network: Any = torch.compile(model, backend=BACKEND) if how == "afterwards" else model
    for iteration in range(case.iterations):
        optimizer.zero_grad()
        loss_of(network, iteration, rank).backward()
        optimizer.step()
    attachment.detach()
    warnings.simplefilter("error")
    return worst_difference(model, train_reference(case, world))


@pytest.mark.parametrize("how", ["in place", "by blocks", "afterwards"])
def test_compiled_models_stay_exact(pair: Ranks, how: str) -> None:
    assert max(pair.run(trained, how)) < 2e-6


def told(rank: int, world: int, wrapped: bool) -> tuple[float, list[str]]:
    case = Case(method="ps")
    model = make_model(case.model)
    where = domain(model, world)
    given = make_bundle(strategy(case, where.graph, world), where)
    optimizer = make_optimizer(case.optimizer, model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network: Any = torch.compile(model, backend=BACKEND) if wrapped else model
        if not wrapped:
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
