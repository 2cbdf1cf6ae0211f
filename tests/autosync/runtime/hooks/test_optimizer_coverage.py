"""Parameters that train outside of the plan: named before training, or at the step."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import autosync
from tests.autosync.runtime.cases import (
    Case,
    loss_of,
    make_model,
    make_optimizer,
    two_optimizers,
    worst_difference,
)
from tests.autosync.runtime.distributing import (
    DDP,
    LATE,
    PLANS,
    bundle_of,
    ddp_of,
    distributed,
    each_engine,
    each_plan,
    refusal,
    train,
    warned,
)
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.ranks import Ranks


def with_outside(rank: int, world: int, case: Case) -> str:
    """Rank 1's optimizer alone holds a layer that is not the model's."""
    model, head = make_model("mlp"), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if rank == 1:
        optimizer.add_param_group({"params": list(head.parameters())})
    found = refusal(lambda: distributed(rank, world, case, model, optimizer))
    assert type(optimizer) is torch.optim.SGD
    return found


@each_engine
def test_parameters_outside_of_the_model_are_refused_on_every_rank(pair: Ranks, case: Case) -> None:
    for rank, found in enumerate(pair.run(with_outside, case)):
        assert "trains 2 parameters that are not the model's" in found
        assert "parameter 0 of group 1, shape (1, 3)" in found
        assert ("rank 1 cannot begin" in found) == (rank == 0)


def with_unheld(rank: int, world: int, case: Case) -> tuple[list[str], float]:
    """Nobody trains the first layer: it stays, as under torch's DDP, and checkpoints hold."""
    model = make_model("mlp")
    alone, network = ddp_of(model)
    held = list(model.parameters())[2:]
    optimizer = torch.optim.SGD(held, lr=0.1, momentum=0.9)
    beside = torch.optim.SGD(list(alone.parameters())[2:], lr=0.1, momentum=0.9)
    words = warned(lambda: distributed(rank, world, case, model, optimizer))
    train(rank, model, [optimizer], range(2))
    optimizer.load_state_dict(optimizer.state_dict())
    train(rank, model, [optimizer], range(2, 4))
    train(rank, network, [beside], range(4))
    autosync.detach(model)
    return words, worst_difference(model, alone)


@each_plan
def test_parameters_without_an_optimizer_are_named_and_unchanged(pair: Ranks, case: Case) -> None:
    for words, difference in pair.run(with_unheld, case):
        assert len(words) == 1
        assert "0.weight, 0.bias" in words[0]
        assert difference < 3e-6


def unfrozen(rank: int, world: int, case: Case) -> str:
    """The script unfreezes a layer in the second iteration: refused, until a new stage begins."""
    model = make_model("mlp")
    layer = linear(model, 0).requires_grad_(False)
    optimizer = make_optimizer("sgd", model)
    network, _ = distributed(rank, world, case, model, optimizer)
    train(rank, network, [optimizer], range(1))
    layer.requires_grad_(True)
    said = refusal(lambda: train(rank, network, [optimizer], [1]))
    autosync.detach(network)
    alone, plain = ddp_of(model)
    beside = make_optimizer("sgd", alone)
    beside.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again, _ = distributed(rank, world, case, model, optimizer)
    train(rank, again, [optimizer], range(2, 4))
    train(rank, plain, [beside], range(2, 4))
    autosync.detach(again)
    assert worst_difference(model, alone) < 3e-6
    return said


@each_engine
def test_unfreezing_is_refused_until_a_new_stage(pair: Ranks, case: Case) -> None:
    for said in pair.run(unfrozen, case):
        assert "0.weight was unfrozen after autosync.distribute" in said


def replaced(rank: int, world: int, case: Case) -> str:
    """The script exchanges a parameter in the optimizer's own list."""
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    network, _ = distributed(rank, world, case, model, optimizer)
    optimizer.param_groups[1]["params"][0] = nn.Parameter(torch.zeros(10))
    found = refusal(lambda: train(rank, network, [optimizer], [0]))
    autosync.detach(network)
    return found


def another_optimizer(rank: int, world: int, case: Case) -> tuple[str, float]:
    """An optimizer that distribute does not know trains the rest: as beside DDP, or refused."""
    model = make_model("mlp")
    alone, network = ddp_of(model)
    mine, other = two_optimizers(model)
    warned(lambda: distributed(rank, world, case, model, mine))
    found = refusal(lambda: train(rank, model, [mine, other], range(3)))
    if found:
        loss_of(model, 0, rank)  # ranks are together still
    else:
        train(rank, network, two_optimizers(alone), range(3))
    autosync.detach(model)
    return found, 0.0 if found else worst_difference(model, alone)


@each_engine
def test_other_parameters_are_named(pair: Ranks, case: Case) -> None:
    for found in pair.run(replaced, case):
        assert "parameter group 1 of the optimizer was changed" in found


@each_plan
def test_other_optimizers_are_named(pair: Ranks, case: Case) -> None:
    for found, difference in pair.run(another_optimizer, case):
        assert difference < 3e-6
        assert (case == PLANS["all-reduce"]) != ("optimizer AdamW, which" in found)


class Inner(torch.optim.Optimizer):
    """Steps another optimizer: in `step()` as Lookahead does, and elsewhere as SAM does."""

    def __init__(self, parameters: Any, lr: float):
        self.inner = torch.optim.SGD(parameters, lr=lr)
        super().__init__(self.inner.param_groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()

    def second_step(self) -> None:
        self.inner.step()


def inner_steps(rank: int, world: int, case: Case) -> tuple[str, str]:
    model = make_model("mlp")
    optimizer = Inner(list(model.parameters()), lr=0.1)
    network, _ = distributed(rank, world, case, model, optimizer, max_grad_norm=0.05)
    loss_of(network, 0, rank).backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    outside = refusal(optimizer.second_step)
    assert all(map(torch.equal, before, model.parameters()))
    inside = refusal(optimizer.step)
    assert not all(map(torch.equal, before, model.parameters()))
    autosync.detach(network)
    return outside, inside


@pytest.mark.parametrize(
    "case", [PLANS["all-reduce"], DDP, LATE["clocks"]], ids=["all-reduce", "ddp", "clocks"]
)
def test_inner_optimizers_step_within_a_given_one_where_it_clips(pair: Ranks, case: Case) -> None:
    for outside, inside in pair.run(inner_steps, case):
        assert "optimizer SGD, which autosync.distribute was not given, steps on" in outside
        assert "outside of the step() of the one that was" in outside
        assert inside == ""


def late_beside(rank: int, world: int) -> str:
    """What another optimizer changes is never sent where updates are late."""
    model = make_model("mlp")
    mine, other = two_optimizers(model)
    warned(lambda: distributed(rank, world, LATE["clocks"], model, mine))
    loss_of(model, 0, rank).backward()
    found = refusal(other.step)
    mine.step()
    autosync.detach(model)
    return found


def test_other_optimizers_are_named_under_late_updates(pair: Ranks) -> None:
    for found in pair.run(late_beside):
        assert "optimizer AdamW, which autosync.distribute was not given, steps on" in found


def renormalizing(rank: int, world: int, case: Case) -> list[str]:
    model = nn.Sequential(nn.Embedding(5, 6, max_norm=1.0), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: list[nn.Module] = []
    words = warned(lambda: kept.append(distributed(rank, world, case, model, optimizer)[0]))
    autosync.detach(kept[0])
    return words


@pytest.mark.parametrize("case", [PLANS["all-reduce"], DDP], ids=["all-reduce", "ddp"])
def test_embeddings_renormalized_on_each_rank_are_named(pair: Ranks, case: Case) -> None:
    for words in pair.run(renormalizing, case):
        assert len(words) == 1
        assert "with max_norm, a forward pass of 0 renormalizes" in words[0]


def trained_renormalized(rank: int, world: int, case: Case) -> tuple[list[float], list[float]]:
    """Rank 0 alone scales row 0 in its forward passes, and rank 1 row 4."""
    table, head = nn.Embedding(5, 6, max_norm=0.1), nn.Linear(6, 3)
    model = nn.Sequential(table, head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: list[nn.Module] = []
    warned(lambda: kept.append(distributed(rank, world, case, model, optimizer)[0]))
    for _ in range(2):
        optimizer.zero_grad()
        kept[0](torch.tensor([2 * rank, 2 * rank + 2])).sum().backward()
        optimizer.step()
    autosync.detach(kept[0])
    return head.weight.flatten().tolist(), table.weight[0].tolist()


@pytest.mark.parametrize("case", [PLANS["all-reduce"], DDP], ids=["all-reduce", "ddp"])
def test_embeddings_renormalized_on_each_rank_train_on(pair: Ranks, case: Case) -> None:
    (head, row), (same_head, other_row) = pair.run(trained_renormalized, case)
    assert head == same_head
    assert row != other_row


def lazy(rank: int, world: int, case: Case, runs: int) -> str:
    """runs: the rank that has run the model before."""
    model = nn.Sequential(nn.LazyLinear(10), nn.LazyBatchNorm1d())
    if rank == runs:
        model(torch.zeros(4, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bundle = bundle_of(case, make_model("mlp"), world)
    return refusal(lambda: autosync.distribute(model, optimizer, bundle))


@pytest.mark.parametrize("case", [PLANS["all-reduce"], DDP], ids=["all-reduce", "ddp"])
def test_lazy_modules_are_named(pair: Ranks, case: Case) -> None:
    for runs in (-1, 1):
        for said in pair.run(lazy, case, runs):
            assert "'0.weight' of the model belongs to a lazy module" in said
