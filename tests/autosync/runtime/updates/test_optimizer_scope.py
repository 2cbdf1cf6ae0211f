"""Optimizers that look at several variables at once, under plans that update them one by one."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autosync
from tests.autosync.runtime.cases import Case, make_model, worst_difference
from tests.autosync.runtime.distributing import (
    PLANS,
    bundle_of,
    ddp_of,
    distributed,
    refusal,
    train,
    warned,
)
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP

WHOLE = {
    "all-reduce": Case(),
    "overlapped all-reduce": Case(schedule=OVERLAP),
    "overlapped reduce-scatter": Case(method="rs", partition="even", schedule=OVERLAP),
}
"""Every replica updates all of each variable."""


class Normalized(torch.optim.Optimizer):
    """Divides by the norm over all gradients, as LAMB does where it clips."""

    def __init__(self, parameters: Any, lr: float):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        held = [(p, group) for group in self.param_groups for p in group["params"]]
        norm = total_norm([p.grad for p, _ in held if p.grad is not None])
        for parameter, group in held:
            if parameter.grad is not None:
                parameter.sub_(group["lr"] * parameter.grad / norm)


class Ahead(torch.optim.Optimizer):
    """Steps another optimizer and pulls weights back halfway, as Lookahead does."""

    def __init__(self, parameters: Any, lr: float):
        self.fast = torch.optim.SGD(parameters, lr=lr, momentum=0.9)
        super().__init__(self.fast.param_groups, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        before = [p.clone() for group in self.param_groups for p in group["params"]]
        self.fast.step()
        after = [p for group in self.param_groups for p in group["params"]]
        torch._foreach_lerp_(after, before, 0.5)


def total_norm(gradients: list[Tensor]) -> Tensor:
    norm: Tensor = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    return norm


class Counting(torch.optim.Optimizer):
    """Counts its steps in its groups, as timm's LAMB does, and in an attribute."""

    def __init__(self, parameters: Any, lr: float):
        super().__init__(parameters, {"lr": lr})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    lr = group["lr"] / (group["step"] + self.steps)
                    parameter.sub_(lr * parameter.grad)


KINDS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "norm of all": lambda parameters: Normalized(parameters, lr=0.1),
    "another inside": lambda parameters: Ahead(parameters, lr=0.1),
}


def together(rank: int, world: int, case: Case, kind: str) -> tuple[float, list[str]]:
    model = make_model("mlp")
    alone, network = ddp_of(model)
    optimizer, beside = (KINDS[kind](list(m.parameters())) for m in (model, alone))
    said = warned(lambda: distributed(rank, world, case, model, optimizer))
    train(rank, model, [optimizer], range(4))
    train(rank, network, [beside], range(4))
    autosync.detach(model)
    return worst_difference(model, alone), said


@pytest.mark.parametrize("kind", ["norm of all", "another inside"])
@pytest.mark.parametrize("plan", WHOLE)
def test_optimizers_that_need_all_variables_update_them_together(
    pair: Ranks, plan: str, kind: str
) -> None:
    for difference, said in pair.run(together, WHOLE[plan], kind):
        assert difference < 3e-6
        if WHOLE[plan].schedule.overlap_forward:
            assert len(said) == 1
            assert "may look at several variables at once" in said[0]
        else:
            assert said == []


def counting_beside(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    return [Counting(matrices, lr=0.1), torch.optim.AdamW(rest, lr=0.01)]


def counted(rank: int, world: int, case: Case) -> tuple[float, int]:
    model = make_model("mlp")
    alone, network = ddp_of(model)
    mine, theirs = counting_beside(model), counting_beside(alone)
    warned(lambda: distributed(rank, world, case, model, mine))
    train(rank, model, mine, range(4))
    train(rank, network, theirs, range(4))
    autosync.detach(model)
    steps: int = mine[0].param_groups[0]["step"]
    return worst_difference(model, alone), steps


@pytest.mark.parametrize("plan", WHOLE)
def test_what_an_optimizer_counts_beside_another_goes_on(pair: Ranks, plan: str) -> None:
    for difference, steps in pair.run(counted, WHOLE[plan]):
        assert difference < 3e-6
        assert steps == 4


def with_closure(rank: int, world: int, case: Case) -> str:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model("mlp")
    optimizer = torch.optim.LBFGS(model.parameters())
    bundle = bundle_of(case, model, world)
    said = refusal(lambda: autosync.distribute(model, optimizer, bundle))
    assert type(optimizer) is torch.optim.LBFGS
    return said


@pytest.mark.parametrize("plan", PLANS)
def test_an_optimizer_that_runs_its_own_passes_is_refused(pair: Ranks, plan: str) -> None:
    for said in pair.run(with_closure, PLANS[plan]):
        assert "LBFGS.step() needs a closure" in said
