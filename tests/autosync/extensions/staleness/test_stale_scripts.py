"""What scripts do around the two lines, under a plan that lags: followed, or refused by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import autosync
from tests.autosync.runtime.cases import (
    Case,
    data,
    loss_of,
    make_model,
    make_optimizer,
    worst_difference,
)
from tests.autosync.runtime.distributing import distributed, largest_difference, refusal, train
from tests.autosync.runtime.hooks.test_model_hooks import WAYS, hooks_of
from tests.autosync.runtime.hooks.test_other_methods import (
    Call,
    Checkpointed,
    Holder,
    by_forward,
    by_method,
    by_submodule,
)
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.ranks import Ranks

LAGS = Case(staleness=1)
FORMS = {"pipelined": LAGS, "clocks": Case(method="ps", staleness=1)}


def unfrozen(rank: int, world: int, form: str) -> str:
    model = make_model("mlp")
    layer = linear(model, 0).requires_grad_(False)
    optimizer = make_optimizer("sgd", model)
    distributed(rank, world, FORMS[form], model, optimizer)
    train(rank, model, [optimizer], range(2))
    layer.requires_grad_(True)
    said = refusal(lambda: train(rank, model, [optimizer], [2]))
    autosync.detach(model)
    return said


def grown(rank: int, world: int, form: str) -> str:
    """A group for a layer that was frozen."""
    model = make_model("mlp")
    layer = linear(model, 0).requires_grad_(False)
    optimizer = torch.optim.SGD(list(model.parameters())[2:], lr=0.1)
    distributed(rank, world, FORMS[form], model, optimizer)
    optimizer.add_param_group({"params": list(layer.parameters())})
    said = refusal(lambda: train(rank, model, [optimizer], [0]))
    autosync.detach(model)
    return said


@pytest.mark.parametrize("form", FORMS)
def test_what_nothing_synchronizes_is_refused(pair: Ranks, form: str) -> None:
    for said in pair.run(unfrozen, form):
        assert "0.weight was unfrozen after autosync.distribute" in said
    for said in pair.run(grown, form):
        assert "the list of the optimizer's parameter groups was changed" in said


def wrapped(rank: int, world: int, form: str) -> str:
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    distributed(rank, world, FORMS[form], model, optimizer)
    network = DistributedDataParallel(model)
    said = refusal(lambda n=network: loss_of(n, 0, rank))  # type: ignore[misc]
    del network
    train(rank, model, [optimizer], range(2))
    autosync.detach(model)
    return said


@pytest.mark.parametrize("form", FORMS)
def test_ddp_around_it_is_refused(pair: Ranks, form: str) -> None:
    for said in pair.run(wrapped, form):
        assert "was put around a model (Sequential)" in said


def copied(rank: int, world: int, way: str) -> list[str]:
    """What a copy has of the plan. It trains by itself then, and the model goes on."""
    model, straight = make_model("cnn"), make_model("cnn")
    optimizer, beside = make_optimizer("sgd", model), make_optimizer("sgd", straight)
    distributed(rank, world, replace(LAGS, model="cnn"), model, optimizer)
    distributed(rank, world, replace(LAGS, model="cnn"), straight, beside)
    train(rank, model, [optimizer], range(2))
    other = WAYS[way](model)
    difference = largest_difference(dict(other.state_dict()), dict(model.state_dict()))
    found = hooks_of(other)
    loss_of(other, 0, rank).backward()
    train(rank, model, [optimizer], range(2, 4))
    train(rank, straight, [beside], range(4))
    for one in (model, straight):
        autosync.detach(one)
    assert difference == 0.0
    assert worst_difference(model, straight) == 0.0
    return found


@pytest.mark.parametrize("way", WAYS)
def test_copies_are_plain(pair: Ranks, way: str) -> None:
    assert pair.run(copied, way) == [[], []]


class Reentrant(Holder):
    """Runs its own backward pass behind that of the last layer."""

    def predict(self, x: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
        out: Tensor = checkpoint(self.net, x.requires_grad_(), use_reentrant=True)
        return out


WAYS_TO_CALL: tuple[tuple[type[Holder], Call], ...] = (
    (Holder, by_forward),
    (Holder, by_method),
    (Holder, by_submodule),
    (Checkpointed, by_forward),
    (Reentrant, by_forward),
)


def called(rank: int, world: int, place: int) -> tuple[list[float], list[list[float]]]:
    """Weights, and buffers behind the last step."""
    build, call = WAYS_TO_CALL[place]
    model: Any = build()
    optimizer = make_optimizer("sgd", model)
    distributed(rank, world, LAGS, model, optimizer)
    for iteration in range(4):
        x, wanted = data(iteration, rank)
        optimizer.zero_grad()
        nn.functional.mse_loss(call(model, x), wanted).backward()
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    buffers = [buffer.flatten().tolist() for buffer in model.buffers()]
    autosync.detach(model)
    return weights, buffers


def test_whatever_the_script_calls(pair: Ranks) -> None:
    expected, _ = pair.run(called, 0)
    for place, (build, call) in enumerate(WAYS_TO_CALL):
        first, second = pair.run(called, place)
        assert first == second, call.__name__
        assert first[0] == pytest.approx(expected[0], abs=2e-6), call.__name__
        if build is Holder:  # checkpoints count a batch twice
            assert first[1] == expected[1], call.__name__


def test_the_ways_differ() -> None:
    """In what the model itself sees of them."""
    seen: list[str] = []
    for build, call in WAYS_TO_CALL[:3]:
        model = build()
        model.register_forward_pre_hook(noted(seen, call.__name__))
        call(model, torch.ones(4, 6))
    assert seen == ["by_forward"]


def noted(seen: list[str], name: str) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, args: Any) -> None:
        seen.append(name)

    return hook
