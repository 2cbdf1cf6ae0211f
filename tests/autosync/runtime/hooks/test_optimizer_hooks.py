"""Hooks that a script registers on its optimizer run as without a strategy: once a step."""

import copy

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autosync.strategy import Schedule
from tests.autosync.runtime.cases import Case, attached, loss_of, make_optimizer
from tests.autosync.runtime.ranks import ranks

STEPS = 3
METHODS = {
    "all_reduce": Schedule(),
    "ps": Schedule(),
    "zero": Schedule("priority", slice_bytes=100, overlap_forward=True),
    "mixed": Schedule(),
}


def hooks_run(rank: int, world: int, method: str, schedule: Schedule) -> list[str]:
    """What ran in STEPS steps, and in one more after the state was loaded."""
    model, optimizer, attachment = attached(
        Case(optimizer="sgd", method=method, schedule=schedule), world
    )
    seen: list[str] = []
    everywhere = register_optimizer_step_pre_hook(lambda *_: seen.append("global"))
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def train(iteration: int) -> None:
        optimizer.zero_grad()
        loss_of(model, iteration, rank).backward()
        optimizer.step()

    for iteration in range(STEPS):
        train(iteration)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(STEPS)
    attachment.engine.flush()
    attachment.detach()
    everywhere.remove()
    return seen


@pytest.mark.parametrize("method", METHODS)
def test_hooks_run_once_a_step(method: str) -> None:
    with ranks(2) as pool:
        for seen in pool.run(hooks_run, method, METHODS[method]):
            assert seen == ["global", "before", "after"] * (STEPS + 1)


def halved(rank: int, world: int) -> float:
    """How far a script whose hook halves the gradients is from the same without a plan."""
    model, optimizer, attachment = attached(Case(optimizer="sgd", method="all_reduce"), world)
    alone = copy.deepcopy(model)
    plain = make_optimizer("sgd", alone)

    def halve(which: torch.optim.Optimizer, *_: object) -> None:
        for group in which.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)

    optimizer.register_step_pre_hook(halve)
    optimizer.zero_grad()
    loss_of(model, 0, rank).backward()
    for mine, theirs in zip(alone.parameters(), model.parameters(), strict=True):
        mine.grad = None if theirs.grad is None else 0.5 * theirs.grad
    optimizer.step()
    plain.step()
    attachment.engine.flush()
    attachment.detach()
    pairs = zip(alone.parameters(), model.parameters(), strict=True)
    return max(float((mine - theirs).detach().abs().max()) for mine, theirs in pairs)


def test_a_hook_changes_gradients_once() -> None:
    with ranks(2) as pool:
        assert max(pool.run(halved)) == 0.0
