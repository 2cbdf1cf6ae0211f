"""Methods of torch's that a distributed model and its optimizer have, or refuse by name."""

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.optim import Optimizer

import autosync
from tests.autosync.runtime.cases import Case, attached, make_model, make_optimizer
from tests.autosync.runtime.distributing import PLANS, distributed, refusal, train
from tests.autosync.runtime.ranks import Ranks

CASES = {**PLANS, "pipelined": Case(staleness=1), "clocks": Case(method="ps", staleness=1)}

Use = Callable[[nn.Module, Optimizer], object]


def join_model(model: nn.Module, optimizer: Optimizer) -> None:
    with Join([model]):  # type: ignore[list-item]  # torch asks for the methods only
        pass


def join_method(model: nn.Module, optimizer: Optimizer) -> None:
    with model.join():  # type: ignore[operator]  # as torch's DDP has it
        pass


def scripted(model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of torch.jit
        torch.jit.script(model)


def script(model: nn.Module, optimizer: Optimizer) -> None:
    scripted(model)


def script_a_part(model: nn.Module, optimizer: Optimizer) -> None:
    scripted(next(model.children()))


WORDS: dict[Use, str] = {
    join_model: "torch's Join shadows the messages of ranks that are out of data",
    join_method: "model.join() shadows the messages of ranks that are out of data",
    script: "torch.jit.script met a module that follows a plan",
    script_a_part: "torch.jit.script met a module that follows a plan",
}


def used(rank: int, world: int, case: Case) -> list[str]:
    model = make_model("mlp")
    attributes = set(vars(model))
    optimizer = make_optimizer("sgd", model)
    distributed(rank, world, case, model, optimizer)
    train(rank, model, [optimizer], range(1))
    found = [refusal(lambda use=use: use(model, optimizer)) for use in WORDS]  # type: ignore[misc]
    scripted(copy.deepcopy(model))
    train(rank, model, [optimizer], range(1, 3))
    autosync.detach(model)
    assert set(vars(model)) == attributes
    scripted(model)
    return found


@pytest.mark.parametrize("plan", CASES)
def test_what_cannot_work_is_refused_by_name(pair: Ranks, plan: str) -> None:
    for found in pair.run(used, CASES[plan]):
        for said, words in zip(found, WORDS.values(), strict=True):
            assert said.startswith(words)


def join_optimizer(rank: int, world: int, case: Case) -> str:
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    distributed(rank, world, case, model, optimizer)
    found = refusal(lambda: Join([optimizer]))  # type: ignore[list-item]
    autosync.detach(model)
    return found


@pytest.mark.parametrize("plan", PLANS)
def test_an_optimizer_does_not_join(pair: Ranks, plan: str) -> None:
    for said in pair.run(join_optimizer, PLANS[plan]):
        assert said.startswith(WORDS[join_model])


class Joining(nn.Module):
    """A model with a part of the name that torch's DDP gives a method."""

    def __init__(self) -> None:
        super().__init__()
        self.join = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.join(x)
        return out


def joined(rank: int, world: int) -> bool:
    model, _, attachment = attached(Case(), world, model=Joining())
    model(torch.ones(2, 6)).sum().backward()
    attachment.detach()
    return isinstance(model.join, nn.Linear)


def test_what_a_model_calls_join_stays(pair: Ranks) -> None:
    assert pair.run(joined) == [True, True]
