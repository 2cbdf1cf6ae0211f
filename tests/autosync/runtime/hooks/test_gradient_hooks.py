"""Hooks on gradients that the script registers behind `distribute`, beside torch's DDP: what they
do to a gradient is done before it is averaged, or refused by name on every rank."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.autosync.runtime.cases import (
    Case,
    attached,
    loss_of,
    make_model,
    make_optimizer,
    worst_difference,
)
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP

CASES = (
    Case(groups=1),
    Case(groups=9),
    Case(partition="even", schedule=OVERLAP),
    Case(method="zero", schedule=OVERLAP),
    Case(method="ps"),
    Case(method="byteps", groups=3),
)
LATE = 1
"""The iteration in which hooks appear."""

Register = Callable[[nn.Parameter, int], Any]


def scale(p: Tensor) -> None:
    assert p.grad is not None
    p.grad.mul_(0.5)


def replace(p: Tensor) -> None:
    assert p.grad is not None
    p.grad = p.grad * 0.5


def node_of(p: Tensor) -> Any:
    edge = p.expand_as(p).grad_fn
    assert edge is not None
    return edge.next_functions[0][0]


def behind_the_node(p: nn.Parameter, rank: int) -> Any:
    node = node_of(p)
    return node, node.register_hook(lambda into, out_of: scale(p))


def in_front_of_the_node(p: nn.Parameter, rank: int) -> Any:
    node = node_of(p)
    return node, node.register_prehook(lambda out_of: tuple(g * 0.5 for g in out_of))


def of_one_rank(p: nn.Parameter, rank: int) -> Any:
    return p.register_post_accumulate_grad_hook(scale) if rank else None


REGISTER: dict[str, Register] = {
    "scaled": lambda p, rank: p.register_post_accumulate_grad_hook(scale),
    "replaced": lambda p, rank: p.register_post_accumulate_grad_hook(replace),
    "on one rank": of_one_rank,
    "tensor hook": lambda p, rank: p.register_hook(lambda g: g * 0.5),
    "behind the node": behind_the_node,
    "in front of the node": in_front_of_the_node,
}


def follow(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    register: Register,
    from_iteration: int,
) -> None:
    held = []
    model = network.module if isinstance(network, DistributedDataParallel) else network
    for iteration in range(LATE + 2):
        if iteration == from_iteration:
            held = [register(p, rank) for p in model.parameters()]
        optimizer.zero_grad(set_to_none=bool(iteration % 2))
        loss_of(network, iteration, rank).backward()
        optimizer.step()
    assert held


def differences(rank: int, world: int, name: str, from_iteration: int) -> list[float]:
    register, found = REGISTER[name], []
    if "behind" in name:  # DDP's own hook stays in front of these
        register = REGISTER["scaled"]
    alone = make_model("mlp")
    ddp = DistributedDataParallel(alone)
    follow(ddp, make_optimizer("sgd", alone), rank, register, from_iteration)
    for case in CASES:
        model, optimizer, attachment = attached(case, world)
        follow(model, optimizer, rank, REGISTER[name], from_iteration)
        attachment.detach()
        found.append(worst_difference(model, alone))
    return found


@pytest.mark.parametrize(
    ("name", "from_iteration"), [*((name, LATE) for name in REGISTER), ("scaled", 0)]
)
def test_hooks_run_before_gradients_are_averaged(
    pair: Ranks, name: str, from_iteration: int
) -> None:
    for found in pair.run(differences, name, from_iteration):
        assert max(found) < 2e-6, dict(zip(CASES, found, strict=True))


def clears(p: Tensor) -> None:
    p.grad = None


def descends(p: Tensor) -> None:
    assert p.grad is not None
    with torch.no_grad():
        p.sub_(0.1 * p.grad)


def descends_and_clears(p: Tensor) -> None:
    descends(p)
    p.grad = None


def backward_with(model: nn.Module, rank: int, hook: Callable[[Tensor], None]) -> None:
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    loss_of(model, 0, rank).backward()


def with_graph(model: nn.Module, rank: int) -> None:
    loss_of(model, 0, rank).backward(create_graph=True)


UNFIT: dict[str, tuple[Callable[[nn.Module, int], None], str]] = {
    "cleared": (lambda m, r: backward_with(m, r, clears), "was cleared inside of backward()"),
    "updated": (lambda m, r: backward_with(m, r, descends), "was changed inside of backward()"),
    "both": (
        lambda m, r: backward_with(m, r, descends_and_clears),
        "was changed inside of backward()",
    ),
    "graph": (with_graph, "backward(create_graph=True) leaves gradients with a graph"),
}


def train_unfit(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, name: str, only: int | None
) -> None:
    """only: the rank that does it, while the others train on."""
    if only is None or only == rank:
        UNFIT[name][0](model, rank)
    for iteration in range(2):
        loss_of(model, iteration, rank).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.state_dict()


def refused(rank: int, world: int, name: str, only: int | None) -> list[str]:
    said = []
    for case in CASES:
        model, optimizer, attachment = attached(case, world)
        said.append(refusal(partial(train_unfit, model, optimizer, rank, name, only)))
        attachment.detach()
    return said


@pytest.mark.parametrize("only", [None, 1])
@pytest.mark.parametrize("name", UNFIT)
def test_unsupported_gradient_hooks_are_refused_on_every_rank(
    pair: Ranks, name: str, only: int | None
) -> None:
    for said in pair.run(refused, name, only):
        assert all(UNFIT[name][1] in words for words in said), said
