"""A rank that alone loads values behind `distribute` is named on every rank."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

import autosync
from autosync.errors import InvalidInput
from autosync.runtime.transport.value_agreement import digests
from tests.autosync.runtime.beside_ddp import PLANS
from tests.autosync.runtime.cases import (
    Case,
    loss_of,
    make_model,
    make_optimizer,
    train_reference,
    worst_difference,
)
from tests.autosync.runtime.distributing import PATIENCE, distributed, refusal
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.ranks import Ranks

Load = Callable[[nn.Module, int, int], None]
"""Called with the model, the rank and the iteration that comes next."""

NAME = "2.bias"


def other_values(model: nn.Module, by: float) -> dict[str, torch.Tensor]:
    return {
        name: value + by if name == NAME else value.clone()
        for name, value in model.state_dict().items()
    }


def before_the_first(model: nn.Module, rank: int, iteration: int) -> None:
    if rank == 1 and iteration == 0:
        model.load_state_dict(other_values(model, 0.5))


def later(culprit: int) -> Load:
    def load(model: nn.Module, rank: int, iteration: int) -> None:
        if rank == culprit and iteration == 2:
            model.load_state_dict(other_values(model, 0.5))

    return load


def of_a_module(model: nn.Module, rank: int, iteration: int) -> None:
    if rank == 1 and iteration == 2:
        linear(model, 2).load_state_dict({"weight": linear(model, 2).weight, "bias": torch.ones(7)})


def two_files(model: nn.Module, rank: int, iteration: int) -> None:
    if iteration == 2:
        model.load_state_dict(other_values(model, 0.5 + rank))


def alone(culprit: int) -> tuple[str, str]:
    """What each says, from rank 0 on."""
    said = (
        f"rank {culprit} has loaded other values behind autosync.distribute, and rank "
        f"{1 - culprit} has not: '{NAME}' differs."
    )
    told = f"rank {culprit} stopped: {said}"
    return (told, said) if culprit else (said, told)


DIFFER = (f"the ranks' values differ: '{NAME}' is another on rank 1 than on rank 0.",) * 2

LOADS: dict[str, tuple[Load, tuple[str, str]]] = {
    "before the first": (before_the_first, DIFFER),
    "rank 0 later": (later(0), alone(0)),
    "rank 1 later": (later(1), alone(1)),
    "of a module": (of_a_module, alone(1)),
    "two files": (two_files, DIFFER),
}


def refused(rank: int, world: int, case: Case, load: str, key: str) -> str:
    """Each rank lives until the other has ended, too."""
    model = make_model("mlp")
    optimizer = make_optimizer(case.optimizer, model)
    distributed(rank, world, case, model, optimizer)
    said = "nothing"
    try:
        for iteration in range(5):
            LOADS[load][0](model, rank, iteration)
            optimizer.zero_grad()
            loss_of(model, iteration, rank).backward()
            optimizer.step()
        model.state_dict()
    except InvalidInput as error:
        said = error.message
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{key}/{rank}", "")
    store.wait([f"{key}/{1 - rank}"], PATIENCE)
    assert refusal(lambda: autosync.detach(model))
    return said


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("plan", PLANS)
def test_ranks_with_other_values_are_named(pair: Ranks, plan: str, load: str) -> None:
    said = pair.run(refused, PLANS[plan], load, f"values/{plan}/{load}")
    assert tuple(said) == LOADS[load][1]


def in_the_scripts_own_collective(rank: int, world: int) -> str:
    """The rank that has not loaded waits outside of the runtime for the one that has."""
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    distributed(rank, world, PLANS["reduce-scatter"], model, optimizer)
    said = ""
    for iteration in range(3):
        later(1)(model, rank, iteration)
        optimizer.zero_grad()
        loss = loss_of(model, iteration, rank)
        try:
            loss.backward()
        except InvalidInput as error:
            said = error.message
        dist.all_reduce(loss.detach())
        if said:
            break
        try:
            optimizer.step()
            model.state_dict()
        except InvalidInput as error:
            said = error.message
    assert refusal(lambda: autosync.detach(model))
    return said


def test_a_rank_that_waits_elsewhere_answers(pair: Ranks) -> None:
    assert tuple(pair.run(in_the_scripts_own_collective)) == alone(1)


def loaded_by_all(rank: int, world: int, case: Case) -> float:
    """The same file on every rank; and on rank 0 alone an average that it takes back."""
    model = make_model("mlp")
    optimizer = make_optimizer(case.optimizer, model)
    distributed(rank, world, case, model, optimizer)
    for iteration in range(case.iterations):
        if iteration == 2:
            model.load_state_dict(other_values(model, 0.5))
            model.load_state_dict(other_values(model, -0.5))
        held = {name: value.clone() for name, value in model.state_dict().items()}
        if rank == 0:
            model.load_state_dict(other_values(model, 0.25))
            loss_of(model, iteration, rank)
            model.load_state_dict(held)
        optimizer.zero_grad()
        loss_of(model, iteration, rank).backward()
        if rank == 0:
            model.load_state_dict(other_values(model, 0.25))
            model.load_state_dict(held)
        optimizer.step()
    autosync.detach(model)
    return worst_difference(model, train_reference(case, world))


@pytest.mark.parametrize("plan", PLANS)
def test_values_loaded_on_all_ranks_are_trained_on(pair: Ranks, plan: str) -> None:
    assert max(pair.run(loaded_by_all, PLANS[plan])) < 3e-6


def test_digests_tell_values_and_places_not_layouts() -> None:
    plain = torch.randn(70, 3, 41, 2)
    laid = plain.to(memory_format=torch.channels_last)
    swapped, moved, flipped = plain.clone(), plain.roll(1, 0), plain.clone()
    swapped.view(-1)[[5, 2100]] = swapped.view(-1)[[2100, 5]]
    flipped.view(torch.int32).view(-1)[-1] ^= 1
    found = digests([plain, laid, plain.clone(), swapped, moved, flipped, plain[1:]])
    assert found[0] == found[1] == found[2]
    assert len(set(found)) == 5


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float64, torch.bool, torch.complex64, torch.int8]
)
def test_digests_of_every_type_and_size(dtype: torch.dtype) -> None:
    for size in ((), (0,), (3,), (5, 7), (1025, 9)):
        one = torch.randint(0, 2, size).to(dtype)
        held = torch.zeros(one.numel() + 1, dtype=dtype)
        held[1:] = one.flatten()
        within = held[1:].view(size)  # begins within a word
        assert digests([one]) == digests([within])
        if one.numel():
            other = one.clone()
            last = other.view(-1)[-1:]
            last.copy_(last == 0)
            assert digests([one]) != digests([other])
