"""Parameters whose elements lie in another than row-major order: gradients keep their strides, so
fused optimizers, which walk linearly through memory, train like one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autosync.runtime.device.model_tensors import dense_strides, shares_places
from autosync.strategy import AllReduce, Encoding, Synchronizer
from tests.autosync.runtime import rows
from tests.autosync.runtime.cases import (
    FIFO,
    Case,
    attached,
    loss_of,
    reference_gradients,
    worst_difference,
)
from tests.autosync.runtime.distributing import largest_difference, refusal
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP

CASES = [
    Case(method=method, partition=partition, schedule=schedule, groups=3)
    for method in ("all_reduce", "ps", "byteps", "rs", "zero", "mixed")
    for partition, schedule in (("whole", FIFO), ("whole", OVERLAP), ("even", OVERLAP))
]


class Laid(nn.Module):
    """A parameter in every order that is dense: channels_last in two and three dimensions, a
    transpose, a permutation, and a kernel of one place, whose strides are ambiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.plane = nn.Conv2d(1, 4, 3, padding=1)
        self.point = nn.Conv2d(4, 4, 1)
        self.room = nn.Conv3d(2, 3, (1, 2, 2))
        self.turned = nn.Parameter(torch.randn(5, 3).t() * 0.1)
        self.mixed = nn.Parameter(torch.randn(4, 5, 3).permute(2, 0, 1) * 0.1)
        self.plane.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.point.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.room.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        x = x.repeat(1, 6).view(-1, 1, 6, 6)
        x = torch.tanh(self.point(torch.tanh(self.plane(x))))
        x = self.room(x.view(-1, 2, 2, 6, 6)).flatten(2).mean(2)
        x = torch.tanh(x @ self.turned)
        return torch.einsum("bk,jik->bj", x, self.mixed)


def laid() -> nn.Module:
    torch.manual_seed(5)
    return Laid()


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "fused AdamW": lambda model: torch.optim.AdamW(model.parameters(), 1e-2, fused=True),
    "fused SGD": lambda model: torch.optim.SGD(model.parameters(), 0.1, 0.9, fused=True),
    "foreach AdamW": lambda model: torch.optim.AdamW(model.parameters(), 1e-2, foreach=True),
    "foreach SGD": lambda model: torch.optim.SGD(model.parameters(), 0.1, 0.9, foreach=True),
}


def alone(
    make: Callable[[nn.Module], Optimizer], world: int, iterations: int
) -> tuple[nn.Module, Optimizer]:
    model = laid()
    optimizer = make(model)
    for iteration in range(iterations):
        gradients = reference_gradients(model, iteration, (1.0 / world,) * world)
        for p, g in zip(model.parameters(), gradients, strict=True):
            p.grad = None if g is None else torch.empty_like(p).copy_(g)
        optimizer.step()
    return model, optimizer


def train(
    model: nn.Module, optimizer: Optimizer, rank: int, iterations: range, to_none: bool
) -> None:
    for iteration in iterations:
        optimizer.zero_grad(set_to_none=to_none)
        loss_of(model, iteration, rank).backward()
        optimizer.step()


def differences(rank: int, world: int, cases: list[Case], name: str) -> dict[str, float]:
    make, found = OPTIMIZERS[name], {}
    reference, _ = alone(make, world, 3)
    for number, case in enumerate(cases):
        model = laid()
        model, optimizer, attachment = attached(case, world, model=model, optimizer=make(model))
        train(model, optimizer, rank, range(3), to_none=bool(number % 2))
        attachment.detach()
        found[str(case)] = worst_difference(model, reference)
    return found


@pytest.mark.parametrize("number", range(len(OPTIMIZERS)))
def test_training_equals_one_process(pair: Ranks, number: int) -> None:
    """Each case with a fused optimizer and with another."""
    for found in pair.run(differences, CASES[number % 2 :: 2], list(OPTIMIZERS)[number]):
        assert max(found.values()) < 2e-6, found


def shown(rank: int, world: int) -> list[tuple[int, ...]]:
    model = laid()
    optimizer = OPTIMIZERS["fused SGD"](model)
    model, optimizer, attachment = attached(Case(), world, model=model, optimizer=optimizer)
    loss_of(model, 0, rank).backward()
    strides = [p.grad.stride() for p in model.parameters() if p.grad is not None]
    attachment.detach()
    return strides


def test_gradients_have_the_strides_of_their_parameters(pair: Ranks) -> None:
    wanted = [parameter.stride() for parameter in laid().parameters()]
    assert pair.run(shown) == [wanted, wanted]


def overflowed(rank: int, world: int, case: Case) -> float:
    """Rank 1 alone overflows at first, as at the beginning of a training in float16: every rank
    skips that step."""
    make = OPTIMIZERS["foreach SGD"]
    model = laid()
    model, optimizer, attachment = attached(case, world, model=model, optimizer=make(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for iteration, overflows in ((0, rank == 1), (0, False), (1, False)):
        optimizer.zero_grad()
        loss = scaler.scale(loss_of(model, iteration, rank))
        (loss * torch.inf if overflows else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    attachment.detach()
    assert scaler.get_scale() == 512.0
    return worst_difference(model, alone(make, world, 2)[0])


@pytest.mark.parametrize("method", ["ps", "zero"])
def test_an_overflow_on_one_rank_is_one_on_all(pair: Ranks, method: str) -> None:
    """Each has to mark a gradient as infinite, whatever its strides."""
    for difference in pair.run(overflowed, Case(method=method, groups=3)):
        assert difference < 2e-6


def moved(rank: int, world: int, first: Case, second: Case) -> tuple[float, float]:
    """A checkpoint of one plan goes on under another: what differs in weights and in state."""
    make = OPTIMIZERS["fused AdamW"]
    model = laid()
    model, optimizer, attachment = attached(first, world, model=model, optimizer=make(model))
    train(model, optimizer, rank, range(2), to_none=True)
    weights, state = model.state_dict(), optimizer.state_dict()
    attachment.detach()
    other = laid()
    other, optimizer, attachment = attached(second, world, model=other, optimizer=make(other))
    other.load_state_dict(weights)
    optimizer.load_state_dict(state)
    train(other, optimizer, rank, range(2, 4), to_none=True)
    after: dict[str, Any] = optimizer.state_dict()["state"]
    attachment.detach()
    reference, beside = alone(make, world, 4)
    apart = largest_difference(after, beside.state_dict()["state"])
    return worst_difference(other, reference), apart


@pytest.mark.parametrize(
    ("first", "second"), [("zero", "all_reduce"), ("all_reduce", "ps"), ("ps", "zero")]
)
def test_a_checkpoint_goes_on_under_another_plan(pair: Ranks, first: str, second: str) -> None:
    for found in pair.run(moved, Case(method=first), Case(method=second)):
        assert max(found) < 2e-6


def turned_later(rank: int, world: int, cases: list[Case]) -> dict[str, float]:
    """The strides of one rank's parameters change behind the attachment."""
    make, found = OPTIMIZERS["fused SGD"], {}
    reference, _ = alone(make, world, 3)
    for case in cases:
        model = laid()
        model, optimizer, attachment = attached(case, world, model=model, optimizer=make(model))
        if rank:
            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            for parameter in model.parameters():
                parameter.data = parameter.data.contiguous()
        train(model, optimizer, rank, range(3), to_none=True)
        attachment.detach()
        found[str(case)] = worst_difference(model, reference)
    return found


def test_strides_that_change_are_followed(pair: Ranks) -> None:
    for found in pair.run(turned_later, CASES[::2]):
        assert max(found.values()) < 2e-6, found


def by_powersgd(shard: int, variable: str, sparse: bool, world: int) -> tuple[int, Synchronizer]:
    return 1, AllReduce(0, encoding=Encoding("powersgd", 1))


def low_rank(rank: int, world: int) -> float:
    """PowerSGD packs matrices of the same rows and columns, whatever their order in memory."""
    models = []
    for contiguous in (False, True):
        model = laid()
        if contiguous:
            for parameter in model.parameters():
                parameter.data = parameter.data.contiguous()
        optimizer = OPTIMIZERS["fused SGD"](model)
        attachment = rows.attached(model, optimizer, rows.plan(model, world, by_powersgd))
        train(model, optimizer, rank, range(4), to_none=True)
        attachment.detach()
        models.append(model)
    return worst_difference(*models)


def test_low_rank_matrices_are_the_same(pair: Ranks) -> None:
    assert max(pair.run(low_rank)) < 2e-6


def begun_with(rank: int, world: int, build: Callable[[int], nn.Module]) -> str:
    model = build(rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return refusal(lambda: attached(Case(), world, model=model, optimizer=optimizer))


def differently_laid(rank: int) -> nn.Module:
    torch.manual_seed(5)
    model = Laid()
    if rank:
        model.turned.data = model.turned.data.contiguous()
    return model


def test_ranks_of_different_strides_are_refused_on_all(pair: Ranks) -> None:
    first, second = pair.run(begun_with, differently_laid)
    assert first == second
    assert "'turned' is torch.float32[3, 5] of strides [1, 3] on rank 0" in first


def expanded(rank: int) -> nn.Module:
    model = nn.Linear(6, 3)
    model.weight.data = torch.randn(6).expand(3, 6)
    return model


def test_elements_that_share_a_place_are_refused(pair: Ranks) -> None:
    for words in pair.run(begun_with, expanded):
        assert words.startswith("elements of variable 'weight' share places of its storage")


@pytest.mark.parametrize(
    ("tensor", "strides", "shared"),
    [
        (torch.empty(2, 3), None, False),
        (torch.empty(2, 3).t(), (1, 3), False),
        (torch.empty(4, 3)[:, :2], None, False),
        (torch.empty(1, 3).t(), (1, 3), False),
        (torch.empty(3).expand(2, 3), None, True),
        (torch.empty(8).unfold(0, 3, 1), None, True),
        (torch.empty(0, 3).t(), None, False),
        (torch.empty(()), None, False),
    ],
)
def test_dense_strides(tensor: Tensor, strides: tuple[int, ...] | None, shared: bool) -> None:
    assert dense_strides(tensor) == strides
    assert shares_places(tensor) == shared
