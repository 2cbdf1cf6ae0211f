"""How often a script calls `step()`: once for each backward pass, or refused by name."""

from collections.abc import Callable
from functools import cache
from itertools import cycle

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import autosync
from tests.autosync.runtime.beside_ddp import PLANS
from tests.autosync.runtime.cases import Case, loss_of, make_model, two_optimizers, worst_difference
from tests.autosync.runtime.distributing import ddp_of, distributed, refusal, train
from tests.autosync.runtime.parts import without_sync
from tests.autosync.runtime.ranks import Ranks

BYTEPS = Case(method="byteps", schedule=PLANS["server"].schedule)
EACH = {**PLANS, "byteps": BYTEPS, "mixed": Case(method="mixed", groups=4)}
each_plan = pytest.mark.parametrize("plan", EACH)


def of_one(model: nn.Module) -> list[Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]


def twice(rank: int, world: int, case: Case, make: Callable[[nn.Module], list[Optimizer]]) -> str:
    """The script catches it, and goes on as beside DDP with one step each."""
    model = make_model("mlp")
    alone, network = ddp_of(model)
    mine, its = make(model), make(alone)
    distributed(rank, world, case, model, mine if len(mine) > 1 else mine[0])
    found = set()
    for iteration in range(2):
        for place, optimizers in ((model, mine), (network, its)):
            loss_of(place, iteration, rank).backward()
            for optimizer in optimizers:
                optimizer.step()
                if optimizers is mine:
                    found.add(refusal(optimizer.step))
            for optimizer in optimizers:
                optimizer.zero_grad()
    autosync.detach(model)
    assert worst_difference(model, alone) < 3e-6
    return "; ".join(found)


@pytest.mark.parametrize(
    ("plan", "make"), list(zip(EACH, cycle((of_one, two_optimizers)), strict=False)), ids=EACH
)
def test_a_second_step_on_the_same_gradients_is_refused(
    pair: Ranks, plan: str, make: Callable[[nn.Module], list[Optimizer]]
) -> None:
    for said in pair.run(twice, EACH[plan], make):
        assert said.startswith("optimizer.step() came a second time on the gradients of one")
        assert said.count("came a second time") == 1


def behind_the_synchronized(
    rank: int, world: int, case: Case, make: Callable[[nn.Module], list[Optimizer]]
) -> tuple[set[str], float]:
    """The script catches it, clears the gradients, and goes on."""
    model = make_model("mlp")
    alone, network = ddp_of(model)
    mine, its = make(model), make(alone)
    distributed(rank, world, case, model, mine if len(mine) > 1 else mine[0])
    loss_of(model, 0, rank).backward()
    with without_sync(model):
        loss_of(model, 1, rank).backward()
    found = {refusal(optimizer.step) for optimizer in mine}
    train(rank, model, mine, range(2))
    train(rank, network, its, range(2))
    autosync.detach(model)
    return found, worst_difference(model, alone)


@pytest.mark.parametrize(
    ("plan", "make"), list(zip(EACH, cycle((of_one, two_optimizers)), strict=False)), ids=EACH
)
def test_a_pass_under_no_sync_behind_the_synchronized_one_is_refused(
    pair: Ranks, plan: str, make: Callable[[nn.Module], list[Optimizer]]
) -> None:
    for found, difference in pair.run(behind_the_synchronized, EACH[plan], make):
        assert all("that no backward pass has synchronized" in said for said in found)
        assert difference < 3e-6


def by_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()


def by_model(model: nn.Module, optimizer: Optimizer) -> None:
    model.zero_grad()


def by_model_again(model: nn.Module, optimizer: Optimizer) -> None:
    model.zero_grad(set_to_none=True)
    optimizer.step()
    model.zero_grad()


Clear = Callable[[nn.Module, Optimizer], None]


def step_on_nothing(network: nn.Module, optimizer: Optimizer, rank: int, clear: Clear) -> None:
    """Behind cleared gradients, and in front of any."""
    optimizer.step()
    for iteration in range(2):
        loss_of(network, iteration, rank).backward()
        optimizer.step()
        clear(network, optimizer)
        optimizer.step()


@cache
def under_ddp(rank: int, clear: Clear) -> nn.Module:
    alone, network = ddp_of(make_model("mlp"))
    (optimizer,) = of_one(alone)
    step_on_nothing(network, optimizer, rank, clear)
    return alone


def nothing_to_apply(rank: int, world: int, case: Case) -> float:
    worst = 0.0
    for clear in (by_optimizer, by_model, by_model_again):
        model = make_model("mlp")
        (optimizer,) = of_one(model)
        distributed(rank, world, case, model, optimizer)
        step_on_nothing(model, optimizer, rank, clear)
        autosync.detach(model)
        worst = max(worst, worst_difference(model, under_ddp(rank, clear)))
    return worst


@each_plan
def test_a_step_on_cleared_gradients_does_nothing(pair: Ranks, plan: str) -> None:
    assert max(pair.run(nothing_to_apply, EACH[plan])) < 3e-6


def cleared_between(rank: int, world: int, case: Case) -> float:
    """The model clears gradients that no step has applied."""
    model = make_model("mlp")
    alone, network = ddp_of(model)
    (mine,), (its,) = of_one(model), of_one(alone)
    distributed(rank, world, case, model, mine)
    for place, plain, optimizer in ((model, model, mine), (network, alone, its)):
        for to_none in (True, False):
            train(rank, place, [optimizer], range(1))
            optimizer.zero_grad()
            loss_of(place, 1, rank).backward()
            plain.zero_grad(set_to_none=to_none)
            if not to_none:  # the batch is skipped
                loss_of(place, 2, rank).backward()
            optimizer.step()
        train(rank, place, [optimizer], range(2, 4))
    autosync.detach(model)
    return worst_difference(model, alone)


@each_plan
def test_a_model_clears_gradients_in_front_of_a_step(pair: Ranks, plan: str) -> None:
    assert max(pair.run(cleared_between, EACH[plan])) < 3e-6


def with_closures(rank: int, world: int, case: Case) -> float:
    """Each closure has a backward pass of its own; a scaler skips the second of three steps."""
    model = make_model("mlp")
    alone, network = ddp_of(model)
    (mine,), (its,) = of_one(model), of_one(alone)
    distributed(rank, world, case, model, mine)
    for place, optimizer in ((model, mine), (network, its)):

        def closure(place: nn.Module = place, optimizer: Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(place, 3, rank)
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)  # type: ignore[arg-type]  # torch says float
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(loss_of(place, 4, rank) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    autosync.detach(model)
    return worst_difference(model, alone)


@each_plan
def test_closures_and_skipped_steps(pair: Ranks, plan: str) -> None:
    assert max(pair.run(with_closures, EACH[plan])) < 3e-6
