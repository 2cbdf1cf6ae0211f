"""Methods that a plan gives a model, and plain copies of what follows a plan."""

import copy
import io
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.optim import SGD, Optimizer

import autosync
from tests.autosync.runtime.cases import (
    Case,
    attached,
    loss_of,
    make_model,
    make_optimizer,
    two_optimizers,
    worst_difference,
)
from tests.autosync.runtime.distributing import (
    CASES,
    DDP,
    PLANS,
    ddp_of,
    distributed,
    each_plan,
    largest_difference,
    refusal,
    train,
)
from tests.autosync.runtime.ranks import Ranks

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
        warnings.simplefilter("ignore", FutureWarning)  # the same from torch 2.14 on
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
def test_unsupported_model_hooks_are_refused_by_name(pair: Ranks, plan: str) -> None:
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


def test_a_models_own_join_attribute_stays(pair: Ranks) -> None:
    assert pair.run(joined) == [True, True]


def with_a_flag(rank: int, world: int) -> list[object]:
    """A model's attribute that is no method of torch's, while a plan is on and behind it."""
    model = make_model("mlp")
    model.__dict__["compile"] = False
    _, _, attachment = attached(Case(), world, model=model)
    found: list[object] = [model.compile]
    attachment.detach()
    return [*found, model.compile]


def test_a_models_own_compile_attribute_stays(pair: Ranks) -> None:
    assert pair.run(with_a_flag) == [[False, False]] * 2


def with_its_own(rank: int, world: int) -> tuple[int, bool]:
    """How often a function that the script has put on its model was called, and whether it is there
    behind the plan."""
    model = make_model("mlp")
    calls: list[int] = []

    def zero_grad() -> None:
        calls.append(rank)
        nn.Module.zero_grad(model)

    model.__dict__["zero_grad"] = zero_grad
    _, _, attachment = attached(Case(), world, model=model)
    loss_of(model, 0, rank).backward()
    model.zero_grad()
    attachment.detach()
    return len(calls), model.__dict__.get("zero_grad") is zero_grad


def test_what_a_script_has_put_on_its_model_is_called_and_comes_back(pair: Ranks) -> None:
    assert pair.run(with_its_own) == [(1, True), (1, True)]


class Notes(OrderedDict[str, int]):
    """What a script keeps on its model."""


class Counted(nn.Sequential):
    """Has a hook of the script's own, keeps its handle, and has more attributes."""

    def __init__(self, inner: nn.Module):
        super().__init__(inner)
        self.calls = 0
        self.notes = Notes(begun=1)
        self.handle = self.register_forward_pre_hook(count)


def count(module: Counted, args: Any) -> None:
    module.calls += 1


def saved(what: object) -> Any:
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(what: object) -> Any:
    return pickle.loads(pickle.dumps(what))


WAYS: dict[str, Callable[[Any], Any]] = {
    "torch.save": saved,
    "pickle": pickled,
    "copy": copy.deepcopy,
}


def hooks_of(model: nn.Module) -> list[str]:
    found = []
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if "hook" in key and value:
                found.append(f"{name}.{key}: {len(value)}")
            if key in ("no_sync", "__reduce_ex__", "forward"):
                found.append(f"{name}.{key}")
    return found


def copied(rank: int, world: int, case: Case) -> list[list[str]]:
    return [copied_by(rank, world, case, way) for way in WAYS]


def copied_by(rank: int, world: int, case: Case, way: str) -> list[str]:
    """Right behind step(), while values may be on their way; the copy goes on by itself."""
    model = Counted(make_model("mlp"))
    alone, network = ddp_of(model)
    optimizer, beside = make_optimizer("sgd", model), make_optimizer("sgd", alone)
    distributed(rank, world, case, model, optimizer)
    train(rank, model, [optimizer], range(2))
    train(rank, network, [beside], range(2))
    together = WAYS[way]({"model": model, "optimizer": optimizer})
    other, its = together["model"], together["optimizer"]
    part = WAYS[way](model[0])
    assert type(other) is Counted
    assert type(other.notes) is Notes
    assert other.notes == {"begun": 1}
    assert type(its) is SGD
    assert worst_difference(other, alone) < 3e-6
    assert largest_difference(dict(part.state_dict()), dict(alone[0].state_dict())) < 3e-6  # type: ignore[index]
    assert largest_difference(its.state_dict(), beside.state_dict()) < 3e-6
    assert its.param_groups[0]["params"][0] is next(other.parameters())
    found = hooks_of(other) + hooks_of(part)
    train(rank, model, [optimizer], range(2, 4))  # the distributed ones are as before
    train(rank, network, [beside], range(2, 4))
    autosync.detach(model)
    assert worst_difference(model, alone) < 3e-6
    calls = other.calls
    loss_of(other, 0, rank).backward()  # of nobody else's concern
    its.step()
    assert other.calls == calls + 1
    other.handle.remove()
    assert hooks_of(other) == []
    assert hooks_of(model) == found
    return found


@each_plan
def test_copies_are_plain(pair: Ranks, case: Case) -> None:
    for found in pair.run(copied, case):
        assert found == [["._forward_pre_hooks: 1"]] * len(WAYS)


def recurring(rank: int, world: int) -> list[str]:
    model = make_model("mlp")
    network, _ = distributed(rank, world, DDP, model, make_optimizer("sgd", model))
    autosync.detach(network)
    return [*saved(model).state_dict()]


def test_a_model_taken_out_of_ddp_saves_plain_names(pair: Ranks) -> None:
    assert pair.run(recurring) == [[*make_model("mlp").state_dict()]] * 2


def beside_others(rank: int, world: int, case: Case) -> list[str]:
    """Two optimizers of one model, pickled each."""
    model = make_model("mlp")
    both = two_optimizers(model)
    distributed(rank, world, case, model, both)
    train(rank, model, both, range(2))
    copies = [saved(optimizer) for optimizer in both]
    states = [optimizer.state_dict() for optimizer in both]
    autosync.detach(model)
    assert largest_difference([one.state_dict() for one in copies], states) == 0.0
    return [type(one).__name__ for one in copies]


@each_plan
def test_each_of_several_optimizers_is_saved_plain(pair: Ranks, case: Case) -> None:
    assert pair.run(beside_others, case) == [["SGD", "AdamW"]] * 2
