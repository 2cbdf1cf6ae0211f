"""Hooks of the script's optimizer run once a step, and contexts around its steps hold."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autosync.runtime.hooks.synchronized_optimizer import wrap_steps
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


class Watched:
    """An optimizer whose steps are in a context, and what that context has seen."""

    def __init__(self, scheduled: str = "") -> None:
        self.seen: list[str] = []
        self.optimizer = SGD([nn.Parameter(torch.ones(2))], lr=1.0)
        if scheduled == "before":
            self.scheduler = StepLR(self.optimizer, 1, 0.5)
        self.had = dict(vars(self.optimizer))
        self.handle = wrap_steps(self.optimizer, self.context)
        if scheduled == "since":
            self.scheduler = StepLR(self.optimizer, 1, 0.5)

    @contextmanager
    def context(self) -> Iterator[None]:
        self.seen.append("in")
        try:
            yield
        except Exception as error:
            self.seen.append(type(error).__name__)
            raise
        self.seen.append("out")


def test_each_step_is_in_the_context_with_its_hooks() -> None:
    watched = Watched()
    watched.optimizer.register_step_pre_hook(lambda *_: watched.seen.append("before"))
    watched.optimizer.register_step_post_hook(lambda *_: watched.seen.append("behind"))
    assert watched.optimizer.step(lambda: 3.0) == 3.0
    assert watched.seen == ["in", "before", "behind", "out"]


def test_errors_of_a_closure_pass_through() -> None:
    watched = Watched()
    with pytest.raises(ZeroDivisionError):
        watched.optimizer.step(lambda: 1 / 0)
    assert watched.seen == ["in", "ZeroDivisionError"]


@pytest.mark.parametrize("scheduled", ["", "before", "since"])
@pytest.mark.filterwarnings("error")
def test_removed_it_leaves_nothing_behind(scheduled: str) -> None:
    watched = Watched(scheduled)
    optimizer = watched.optimizer
    for number in range(2):
        optimizer.step()
        if scheduled:
            watched.scheduler.step()
            assert optimizer.param_groups[0]["lr"] == 0.5 ** (number + 1)
    assert watched.seen == ["in", "out"] * 2
    watched.handle.remove()
    optimizer.step()
    if scheduled:
        watched.scheduler.step()
    assert watched.seen == ["in", "out"] * 2
    assert optimizer.__dict__.get("step") is watched.had.get("step") or scheduled == "since"
    assert ("step" in optimizer.__dict__) == bool(scheduled)


def test_a_copy_has_no_context() -> None:
    watched = Watched()
    copy.deepcopy(watched.optimizer).step()
    assert watched.seen == []
