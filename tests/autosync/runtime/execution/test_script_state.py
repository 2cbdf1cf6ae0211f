"""The optimizer's state that a script reads and changes is what the plan goes on from."""

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import autosync
from tests.autosync.runtime.beside_ddp import complete_late
from tests.autosync.runtime.cases import (
    Case,
    attached,
    iterate,
    loss_of,
    make_model,
    make_optimizer,
    two_optimizers,
    worst_difference,
)
from tests.autosync.runtime.distributing import largest_difference, refusal
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP

PLANS = {
    "all-reduce": Case(optimizer="adamw"),
    "priority": Case(optimizer="adamw", partition="even", schedule=OVERLAP),
    "dear": Case(optimizer="adamw", method="rs", schedule=OVERLAP),
    "byteps": Case(optimizer="adamw", method="byteps", partition="even", schedule=OVERLAP),
}
SPLIT = {
    "sharded": Case(optimizer="adamw", method="zero", partition="uneven", schedule=OVERLAP),
    "server": Case(optimizer="adamw", method="ps"),
    "mixed": Case(optimizer="adamw", method="mixed", partition="pieces", groups=4),
}

Script = Callable[[Optimizer, nn.Module, list[Any]], object]
"""What a script does behind a step(). The list lives as long as the training: what it has kept."""


def cleared(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    optimizer.state.clear()


def exchanged(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    optimizer.state = defaultdict(dict)


def assigned_what_it_was(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    optimizer.state = optimizer.state


def zeroed(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    for state in optimizer.state.values():
        state["exp_avg"].zero_()


def scaled_by_parameter(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    """ReLoRA prunes the moments so."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key in ("exp_avg", "exp_avg_sq"):
                optimizer.state[parameter][key].mul_(0.1)


def at_once(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    torch._foreach_mul_([state["exp_avg"] for state in optimizer.state.values()], 0.5)


def replaced(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        state["exp_avg"] = torch.full_like(parameter, 0.01)
        state["step"] = torch.tensor(1.0)


def entries_exchanged(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        optimizer.state[parameter] = {key: 0.5 * value for key, value in state.items()}


def some_removed(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    for number, parameter in enumerate(model.parameters()):
        if number % 2:
            del optimizer.state[parameter]
        else:
            optimizer.state.pop(parameter, None)["step"].zero_()  # of nobody's concern any more


def tensors_kept(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    """Taken once, and changed behind every step from then on."""
    if not kept:
        kept.extend(state["exp_avg"] for state in optimizer.state.values())
    for moment in kept:
        moment.mul_(0.5)


def tensors_kept_for_later(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    if not kept:
        kept.extend(state["exp_avg"] for state in optimizer.state.values())
    elif len(kept) < 100:
        kept.extend([None] * 100)
        for moment in kept[:5]:
            moment.mul_(0.5)


def dictionaries_kept(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    if not kept:
        kept.extend((optimizer.state, list(optimizer.state.values())))
    for entry in kept[1]:
        entry["exp_avg"] = torch.zeros_like(entry["exp_avg"])
    kept[0][next(model.parameters())]["exp_avg_sq"].add_(0.01)


def read(optimizer: Optimizer, model: nn.Module, kept: list[Any]) -> None:
    """What it finds is compared with what it finds beside DDP."""
    state = optimizer.state
    assert set(state) == set(model.parameters())
    other = torch.zeros(1)
    assert other not in state
    assert state.get(other) is None
    assert len(state) == len(list(model.parameters()))
    copies = copy.deepcopy(state), pickle.loads(pickle.dumps(dict(state)))
    assert {type(one) for one in copies} <= {dict, defaultdict}
    kept += [{key: v.clone() for key, v in state[p].items()} for p in model.parameters()]
    kept.append(sorted(float(entry["exp_avg"].sum()) for entry in copies[0].values()))
    kept.append(len(state))


SCRIPTS: list[Script] = [
    cleared,
    exchanged,
    assigned_what_it_was,
    zeroed,
    scaled_by_parameter,
    at_once,
    replaced,
    entries_exchanged,
    some_removed,
    tensors_kept,
    tensors_kept_for_later,
    dictionaries_kept,
    read,
]


def follow(
    network: nn.Module, model: nn.Module, optimizer: Optimizer, rank: int, script: Script
) -> list[Any]:
    kept: list[Any] = []
    for iteration in range(4):
        optimizer.zero_grad()
        loss_of(network, iteration, rank).backward()
        optimizer.step()
        if iteration >= 1:
            script(optimizer, model, kept)
    return kept


def differences(rank: int, world: int, script: Script) -> dict[str, float]:
    """Of weights, of the state, and of what the script has read."""
    alone = make_model("mlp")
    beside = make_optimizer("adamw", alone)
    its = follow(DistributedDataParallel(alone), alone, beside, rank, script)
    found = {}
    for name, case in PLANS.items():
        model, optimizer, attachment = attached(case, world)
        complete_late(attachment.engine)
        mine = follow(model, model, optimizer, rank, script)
        attachment.detach()
        states = [
            [dict(one.state[p]) for p in trained.parameters()]
            for one, trained in ((optimizer, model), (beside, alone))
        ]
        found[name] = max(
            worst_difference(model, alone),
            largest_difference(*states),
            largest_difference(mine, its) if script is read else 0.0,
        )
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_changes_made_by_the_script_are_used(pair: Ranks, script: Script) -> None:
    for found in pair.run(differences, script):
        assert max(found.values()) < 3e-6, found


def saved_between(rank: int, world: int, case: Case) -> float:
    """A checkpoint right behind a change, before any step: it holds the change, and so does what
    loads it."""
    model, optimizer, attachment = attached(case, world)
    complete_late(attachment.engine)
    iterate(model, optimizer, rank, range(2))
    zeroed(optimizer, model, [])
    saved = copy.deepcopy(optimizer.state_dict())
    assert len(saved["state"]) == 5
    assert not any(float(state["exp_avg"].abs().sum()) for state in saved["state"].values())
    iterate(model, optimizer, rank, range(2, 3))
    zeroed(optimizer, model, [])
    kept: list[Tensor] = [state["exp_avg"] for state in optimizer.state.values()]
    iterate(model, optimizer, rank, range(3, 4))
    optimizer.load_state_dict(saved)
    assert all(float(moment.abs().sum()) < float("inf") for moment in kept)  # the script's own
    assert not any(float(state["exp_avg"].abs().sum()) for state in optimizer.state.values())
    cleared(optimizer, model, [])
    attachment.detach()
    return float(len(optimizer.state))


@pytest.mark.parametrize("plan", PLANS)
def test_a_checkpoint_holds_what_the_script_left(pair: Ranks, plan: str) -> None:
    assert pair.run(saved_between, PLANS[plan]) == [0.0, 0.0]


def refused(rank: int, world: int, case: Case) -> tuple[list[str], float]:
    """What each script is told, and the difference of a training that went on all the same."""
    model, optimizer, attachment = attached(case, world)
    alone = make_model(case.model)
    beside = make_optimizer(case.optimizer, alone)
    network = DistributedDataParallel(alone)
    found = []
    assert not optimizer.state
    for iteration in range(3):
        for place, one in ((model, optimizer), (network, beside)):
            iterate(place, one, rank, range(iteration, iteration + 1))
        assert optimizer.state
        found += [refusal(partial(script, optimizer, model, [])) for script in SCRIPTS]
    with pytest.raises(ValueError, match="parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    assert optimizer.state
    attachment.detach()
    return found, worst_difference(model, alone)


@pytest.mark.parametrize("plan", SPLIT)
def test_state_that_no_rank_holds_is_refused(pair: Ranks, plan: str) -> None:
    for found, difference in pair.run(refused, SPLIT[plan]):
        assert all("optimizer.state was read or changed, but no rank" in one for one in found)
        assert difference < 3e-6


def misshapen(rank: int, world: int, case: Case) -> str:
    model, optimizer, attachment = attached(case, world)
    iterate(model, optimizer, rank, range(1))
    saved = optimizer.state_dict()
    saved["state"][0]["exp_avg"] = torch.zeros(3)  # of one variable, which one rank owns
    found = refusal(lambda: optimizer.load_state_dict(saved))
    attachment.detach(keep_state=False)
    return found


@pytest.mark.parametrize("plan", ["sharded", "server"])
def test_state_of_another_shape_is_named_on_every_rank(pair: Ranks, plan: str) -> None:
    for found in pair.run(misshapen, SPLIT[plan]):
        assert "the optimizer's state 'exp_avg' of variable '" in found
        assert "has shape (3,)" in found


def of_two(rank: int, world: int, case: Case) -> float:
    """Two optimizers, whose variables lie in the same buckets."""
    model, alone = make_model("mlp"), make_model("mlp")
    pairs = [two_optimizers(model), two_optimizers(alone)]
    _, _, attachment = attached(case, world, model=model, optimizer=pairs[0])  # type: ignore[arg-type]
    complete_late(attachment.engine)
    for place, optimizers in ((model, pairs[0]), (DistributedDataParallel(alone), pairs[1])):
        for iteration in range(4):
            loss_of(place, iteration, rank).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            zeroed(optimizers[1], place, [])
            optimizers[0].state.clear()
    autosync.detach(model)
    return worst_difference(model, alone)


@pytest.mark.parametrize("plan", PLANS)
def test_the_state_of_one_of_two_optimizers(pair: Ranks, plan: str) -> None:
    assert max(pair.run(of_two, PLANS[plan])) < 3e-6
