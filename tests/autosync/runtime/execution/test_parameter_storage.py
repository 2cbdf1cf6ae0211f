"""Scripts that give parameters another storage are followed."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from autosync.runtime.execution.model_checks import ParameterStorage
from autosync.runtime.layout.records import VariableRecord
from tests.autosync.runtime.beside_ddp import PLANS, Script, beside_ddp
from tests.autosync.runtime.cases import Case, loss_of
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.place import here
from tests.autosync.runtime.ranks import Ranks


def nothing(model: nn.Module, moment: str, iteration: int) -> None:
    """What most scripts do."""


def average_in_and_out(rank: int) -> Script:
    """An average of weights is swapped in for an evaluation; what comes back is now the same
    tensor, now a copy."""
    averages: list[torch.Tensor] = []

    def script(model: nn.Module, moment: str, iteration: int) -> None:
        if moment != "stepped":
            return
        weights = [p.data for p in model.parameters()]
        if not averages:
            averages.extend(w.clone() for w in weights)
        for average, weight in zip(averages, weights, strict=True):
            average.lerp_(weight, 0.5)
        for p, average in zip(model.parameters(), averages, strict=True):
            p.data = average
        with torch.no_grad():
            loss_of(model, iteration, rank)
        for p, weight in zip(model.parameters(), weights, strict=True):
            p.data = weight.clone() if iteration % 2 else weight

    return script


def averages_stay(rank: int) -> Script:
    """Training goes on from the average."""
    averages: list[torch.Tensor] = []

    def script(model: nn.Module, moment: str, iteration: int) -> None:
        if moment != "stepped":
            return
        if not averages:
            averages.extend(p.detach().clone() for p in model.parameters())
        for p, average in zip(model.parameters(), averages, strict=True):
            average.lerp_(p.detach(), 0.5)
            p.data = average.clone()

    return script


def first_rank_only(rank: int) -> Script:
    return average_in_and_out(rank) if rank == 0 else nothing


def through_a_vector(rank: int) -> Script:
    def script(model: nn.Module, moment: str, iteration: int) -> None:
        if moment == "stepped":
            vector = parameters_to_vector(model.parameters()).detach() * 0.9
            vector_to_parameters(vector, model.parameters())

    return script


def converted_and_back(rank: int) -> Script:
    def script(model: nn.Module, moment: str, iteration: int) -> None:
        if moment == "stepped" and "no_sync" in model.__dict__:  # DDP loses its hooks by it
            model.double().float()

    return script


def other_strides(rank: int) -> Script:
    def script(model: nn.Module, moment: str, iteration: int) -> None:
        if moment == "gradients":
            weight = linear(model, 2).weight
            weight.data = weight.data.t().contiguous().t()

    return script


def converted_before_step(rank: int) -> Script:
    def script(model: nn.Module, moment: str, iteration: int) -> None:
        if moment == "gradients" and "no_sync" in model.__dict__:  # DDP loses its hooks by it
            model.double().float()

    return script


SCRIPTS: tuple[Callable[[int], Script], ...] = (
    average_in_and_out,
    averages_stay,
    first_rank_only,
    through_a_vector,
    converted_and_back,
    other_strides,
)


def all_scripts(
    rank: int, world: int, case: Case, scripts: tuple[Callable[[int], Script], ...]
) -> dict[str, float]:
    return {make.__name__: beside_ddp(rank, world, case, make) for make in scripts}


@pytest.mark.parametrize("plan", PLANS)
def test_exchanged_storages_are_followed(pair: Ranks, plan: str) -> None:
    for differences in pair.run(all_scripts, PLANS[plan], SCRIPTS):
        assert max(differences.values()) < 3e-6, differences


def test_gradients_may_be_converted_where_they_are_whole(pair: Ranks) -> None:
    for differences in pair.run(all_scripts, PLANS["all-reduce"], (converted_before_step,)):
        assert max(differences.values()) < 3e-6, differences


def tied_by_data() -> nn.Module:
    torch.default_generator.manual_seed(7)
    model = here(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3)))
    linear(model, 2).weight.data = linear(model, 0).weight.data
    return model


def unchanged(rank: int) -> Script:
    return nothing


def tied(rank: int, world: int, case: Case) -> str:
    return refusal(lambda: beside_ddp(rank, world, case, unchanged, tied_by_data))


def test_two_parameters_in_one_memory_are_updated_one_behind_the_other(pair: Ranks) -> None:
    """Or refused by name, where an update does not read what the other's has written."""
    alike = pair.run(beside_ddp, PLANS["all-reduce"], unchanged, tied_by_data)
    assert max(alike) < 3e-6
    for plan in ("reduce-scatter", "zero", "server"):
        for said in pair.run(tied, PLANS[plan]):
            assert "'2.weight' lies in the memory of '0.weight'" in said


def test_parts_of_one_flat_buffer_are_apart() -> None:
    """An empty one begins where its neighbour does."""
    model = nn.ParameterList(torch.zeros(5).split([2, 0, 3]))
    variables = [
        VariableRecord(index, str(index), parameter, parameter.detach(), 0, deferred=True)
        for index, parameter in enumerate(model)
    ]
    ParameterStorage(model, variables)
