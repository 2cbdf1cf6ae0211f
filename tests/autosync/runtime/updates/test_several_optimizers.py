"""Several optimizers of one model, beside the same under torch's DDP; one of two models."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer

import autosync
from tests.autosync.runtime.cases import Case, loss_of, make_model, two_optimizers, worst_difference
from tests.autosync.runtime.distributing import (
    DDP,
    PLANS,
    ddp_of,
    distributed,
    each_plan,
    largest_difference,
    refusal,
    train,
)
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.ranks import Ranks

WAYS = {**PLANS, "mixed": Case(method="mixed", partition="uneven", groups=4), "ddp": DDP}
each_way = pytest.mark.parametrize("case", WAYS.values(), ids=WAYS)


def trained(rank: int, world: int, case: Case) -> tuple[float, float]:
    """With schedulers that run behind each step, and a checkpoint in the middle."""
    model = make_model("mlp")
    alone, network = ddp_of(model)
    pairs = [two_optimizers(model), two_optimizers(alone)]
    returned, pairs[0] = distributed(rank, world, case, model, pairs[0])
    assert [isinstance(o, kind) for o, kind in zip(pairs[0], (SGD, AdamW), strict=True)]
    for place, optimizers in ((returned, pairs[0]), (network, pairs[1])):
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in optimizers]
        for iteration in range(3):
            loss_of(place, iteration, rank).backward()
            for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if iteration == 1:
                for optimizer in optimizers:
                    optimizer.load_state_dict(optimizer.state_dict())
    model, given = autosync.detach(returned)
    assert all(mine is its for mine, its in zip(given, pairs[0], strict=True))
    assert [type(optimizer) for optimizer in given] == [SGD, AdamW]
    states = [[optimizer.state_dict() for optimizer in optimizers] for optimizers in pairs]
    return worst_difference(model, alone), largest_difference(*states)


@each_way
def test_both_train_and_are_saved_as_under_ddp(pair: Ranks, case: Case) -> None:
    for weights, states in pair.run(trained, case):
        assert weights < 3e-6
        assert states < 3e-6


def muon(rank: int, world: int, case: Case) -> tuple[str, float]:
    model = make_model("mlp")
    alone, network = ddp_of(model)
    mine, theirs = matrices_apart(model), matrices_apart(alone)
    found = refusal(lambda: distributed(rank, world, case, model, mine))
    if found:
        return found, 0.0
    train(rank, model, mine, range(4))
    train(rank, network, theirs, range(4))
    autosync.detach(model)
    return "", worst_difference(model, alone)


def matrices_apart(model: nn.Module) -> list[Optimizer]:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    return [Muon(matrices, lr=0.02), AdamW(rest, lr=0.01)]


@each_plan
def test_muon_beside_adamw(pair: Ranks, case: Case) -> None:
    whole = case.method in ("all_reduce", "rs")
    for found, difference in pair.run(muon, case):
        assert difference < 3e-6
        assert ("which optimizer Muon does not allow" in found) != whole


class Adversaries(nn.Module):
    """A generator and a discriminator in one model, trained in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(6, 6)
        self.discriminator = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.discriminator(torch.tanh(self.generator(x)))
        return out


def in_turns(rank: int, world: int, case: Case) -> tuple[str, float]:
    torch.manual_seed(3)
    model = Adversaries()
    alone, network = ddp_of(model)
    sides: list[list[Optimizer]] = [
        [Adam(m.discriminator.parameters(), lr=0.01), Adam(m.generator.parameters(), lr=0.02)]
        for m in (model, alone)
        if isinstance(m, Adversaries)
    ]
    distributed(rank, world, case, model, sides[0])

    def play(place: nn.Module, optimizers: list[Optimizer]) -> None:
        for iteration in range(4):
            optimizer = optimizers[iteration % 2]
            optimizer.zero_grad()
            loss_of(place, iteration, rank).backward()
            optimizer.step()

    found = refusal(lambda: play(model, sides[0]))
    if found:
        sides[0][1].step()
    else:
        play(network, sides[1])
    autosync.detach(model)
    return found, 0.0 if found else worst_difference(model, alone)


@each_plan
def test_optimizers_in_turns(pair: Ranks, case: Case) -> None:
    for found, difference in pair.run(in_turns, case):
        assert difference < 3e-6
        assert (case == PLANS["all-reduce"]) != ("all optimizers of a model step" in found)


def between_steps(rank: int, world: int, case: Case) -> list[str]:
    """What a script does while one of two steps is awaited."""
    found = []
    for what in ("forward", "clear", "state", "scaler"):
        model = make_model("mlp")
        optimizers = two_optimizers(model)
        distributed(rank, world, case, model, optimizers)
        loss_of(model, 0, rank).backward()
        if what == "scaler":
            found.append(refusal(partial(unscaled, optimizers[1])))
        else:
            optimizers[0].step()
        if what == "forward":
            found.append(refusal(partial(loss_of, model, 1, rank)))
        elif what == "clear":
            model.zero_grad()
            found.append(refusal(optimizers[1].step))
        elif what == "state":
            found.append(refusal(optimizers[0].state_dict))
        if what == "scaler":
            for optimizer in optimizers:
                optimizer.zero_grad()
        elif what != "clear":
            optimizers[1].step()
        autosync.detach(model)
    return found


def unscaled(optimizer: Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)


@pytest.mark.parametrize("case", list(PLANS.values())[1:], ids=list(PLANS)[1:])
def test_misuse_between_two_steps_is_named(pair: Ranks, case: Case) -> None:
    for forward, clear, state, scaler in pair.run(between_steps, case):
        assert "before optimizer AdamW had stepped" in forward
        assert "was cleared or replaced" in clear
        assert "before optimizer AdamW had stepped" in state
        assert "GradScaler" in scaler


def misgiven(rank: int, world: int, case: Case) -> list[str]:
    first, second = make_model("mlp"), make_model("mlp")
    both = SGD([*first.parameters(), *second.parameters()], lr=0.1)
    parameters = list(first.parameters())
    overlapping: list[Optimizer] = [SGD(parameters, lr=0.1), Adam(parameters[:1])]
    mine: Optimizer = SGD(first.parameters(), lr=0.1)
    found = [
        refusal(lambda: distributed(rank, world, case, first, both)),
        refusal(lambda: distributed(rank, world, case, first, overlapping)),
    ]
    distributed(rank, world, case, first, mine)
    found.append(refusal(lambda: distributed(rank, world, case, second, mine)))
    autosync.detach(first)
    return found


@each_plan
def test_two_models_and_shared_parameters_are_refused(pair: Ranks, case: Case) -> None:
    for both, overlapping, again in pair.run(misgiven, case):
        assert "trains 5 parameters that are not the model's" in both
        assert "two optimizers (SGD and Adam) hold parameter '0.weight'" in overlapping
        assert "follows the plan of another model" in again


def clipped(rank: int, world: int, case: Case) -> tuple[str, float]:
    model = make_model("mlp")
    alone, network = ddp_of(model)
    mine, theirs = two_optimizers(model), two_optimizers(alone)
    found = refusal(lambda: distributed(rank, world, case, model, mine, 0.05))
    if found:
        return found, 0.0
    train(rank, model, mine, range(3))
    for iteration in range(3):
        network.zero_grad()
        loss_of(network, iteration, rank).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
        for optimizer in theirs:
            optimizer.step()
    autosync.detach(model)
    return "", worst_difference(model, alone)


@each_plan
def test_clipping_by_the_norm_of_all(pair: Ranks, case: Case) -> None:
    for found, difference in pair.run(clipped, case):
        assert difference < 3e-6
        assert (case == PLANS["all-reduce"]) == ("max_grad_norm was given" in found)


def two_pairs(rank: int, world: int, case: Case) -> float:
    """Two models, each with an optimizer of its own, at once."""
    models = [make_model("mlp") for _ in range(2)]
    linear(models[1], 0).weight.data.mul_(0.5)
    pairs = [ddp_of(model) for model in models]
    mine = [SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    theirs = [SGD(alone.parameters(), lr=0.1, momentum=0.9) for alone, _ in pairs]
    for model, optimizer in zip(models, mine, strict=True):
        distributed(rank, world, case, model, optimizer)
    for iteration in range(3):
        for place, optimizers in ((models, mine), ([n for _, n in pairs], theirs)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = loss_of(place[0], iteration, rank) * loss_of(place[1], iteration, rank)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    for model in models:
        autosync.detach(model)
    return max(worst_difference(m, alone) for m, (alone, _) in zip(models, pairs, strict=True))


@each_plan
def test_two_models_at_once(pair: Ranks, case: Case) -> None:
    assert max(pair.run(two_pairs, case)) < 3e-6
