"""A context around steps: entered by each, left by whatever ends it, and gone when removed."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from autosync.runtime.hooks.synchronized_optimizer import wrap_steps


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


def test_what_a_closure_raises_passes_through() -> None:
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
