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
from tests.autosync.runtime.cases import (
    Case,
    attached,
    iterate,
    loss_of,
    make_optimizer,
    worst_difference,
)
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP

STEPS = 3
CASES = (Case(), Case(method="ps"), Case(method="zero", schedule=OVERLAP), Case(method="mixed"))


def hooks_run(rank: int, world: int, case: Case) -> list[str]:
    """What ran in STEPS steps, and in one more after the state was loaded."""
    model, optimizer, attachment = attached(case, world)
    seen: list[str] = []
    everywhere = register_optimizer_step_pre_hook(lambda *_: seen.append("global"))
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    iterate(model, optimizer, rank, range(STEPS))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    iterate(model, optimizer, rank, [STEPS])
    attachment.engine.flush()
    attachment.detach()
    everywhere.remove()
    return seen


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.method)
def test_hooks_run_once_a_step(pair: Ranks, case: Case) -> None:
    for seen in pair.run(hooks_run, case):
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
    return worst_difference(alone, model)


def test_a_hook_changes_gradients_once(pair: Ranks) -> None:
    assert max(pair.run(halved)) == 0.0


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
