"""A `step()` that ends with an error on one rank alone: the others read which, while that rank's
process lives on. What a script catches, and goes on from, ends nothing."""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

import autosync
from autosync.errors import AutosyncError
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.execution.monitor import LOOK_SECONDS
from tests.autosync.runtime.cases import Case, loss_of, make_model, make_optimizer
from tests.autosync.runtime.distributing import PLANS, distributed
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.ranks import Ranks

LAST = 2
"""The iteration in which one rank's step ends with an error."""

PATIENCE = timedelta(seconds=30)
"""Half of the process group's timeout."""

LATE = {"pipelined": Case(staleness=1), "clocks": Case(method="ps", staleness=1)}
CASES = {**PLANS, **LATE}


def unfreeze(model: nn.Module, optimizer: Optimizer) -> None:
    linear(model, 0).requires_grad_(True)
    optimizer.step()


def break_closure(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.step(lambda: model.loss)  # type: ignore[arg-type,return-value]


def break_update(model: nn.Module, optimizer: Optimizer) -> None:
    del optimizer.param_groups[0]["lr"]
    optimizer.step()


def break_late_update(model: nn.Module, optimizer: Optimizer) -> None:
    """In code of the optimizer's own."""

    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError("no such moment")

    with patch.object(torch.optim.SGD, "step", fail):
        optimizer.step()
        model.state_dict()


def break_hook(model: nn.Module, optimizer: Optimizer) -> None:
    handle = optimizer.register_step_pre_hook(lambda *_: [][1])
    try:
        optimizer.step()
    finally:
        handle.remove()


Odd = Callable[[nn.Module, Optimizer], None]
REFUSED = "0.weight was unfrozen after autosync.distribute"
WORDS: dict[Odd, str] = {
    break_closure: "AttributeError: 'Sequential' object has no attribute 'loss'",
    break_update: "KeyError: 'lr'",
    break_hook: "IndexError: list index out of range",
}


def frozen_mlp() -> tuple[nn.Module, Optimizer]:
    model = make_model("mlp")
    linear(model, 0).requires_grad_(False)
    return model, make_optimizer("sgd", model)


def stopped(rank: int, world: int, name: str, culprit: int, odd: Odd) -> str:
    """The words of the end. The culprit lives until the other has had them, its groups open."""
    store = dist.distributed_c10d._get_default_store()
    key = f"told/{name}/{culprit}/{odd.__name__}"
    model, optimizer = frozen_mlp()
    distributed(rank, world, CASES[name], model, optimizer)
    plan = ATTACHED.plan_of(model)
    assert plan is not None
    said = "nothing"
    try:
        for iteration in range(3 * LAST):
            optimizer.zero_grad()
            loss_of(model, iteration, rank).backward()
            if (rank, iteration) == (culprit, LAST):
                odd(model, optimizer)
            else:
                optimizer.step()
    except Exception as error:
        known = isinstance(error, AutosyncError)
        said = str(error) if known else f"{type(error).__name__}: {error}"
    if rank == culprit:
        store.wait([key], PATIENCE)
    else:
        store.set(key, "told")
    with suppress(AutosyncError):  # the other one has gone
        plan.detach(keep_state=False)
    if ATTACHED.plan_of(model) is not None:
        plan.detach(keep_state=False)
    return said


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_who_waits_for_a_rank_whose_step_was_refused_reads_why(
    pair: Ranks, name: str, culprit: int
) -> None:
    said = pair.run(stopped, name, culprit, unfreeze)
    assert REFUSED in said[culprit]
    assert said[1 - culprit] == f"rank {culprit} stopped: {said[culprit]}"


@pytest.mark.parametrize("odd", WORDS)
@pytest.mark.parametrize("name", LATE)
def test_any_error_that_ends_a_step_is_told_by_name(pair: Ranks, name: str, odd: Odd) -> None:
    said = pair.run(stopped, name, 1, odd)
    assert said[1] == WORDS[odd]
    assert f"rank 1 stopped: optimizer.step() ended with {WORDS[odd]}" in said[0]


@pytest.mark.parametrize("odd", [*WORDS, break_late_update])
@pytest.mark.parametrize("name", PLANS)
def test_the_same_under_exact_plans(pair: Ranks, name: str, odd: Odd) -> None:
    """An update may run in step() or behind it, on a thread of the runtime. Rank 0 is the server of
    all: rank 1 updates nothing, so it needs no learning rate."""
    updates_nothing = name == "server" and odd is break_update
    for culprit in (0,) if updates_nothing else (0, 1):
        said = pair.run(stopped, name, culprit, odd)
        words = WORDS.get(odd, "ValueError: no such moment")
        assert words in said[culprit]
        assert said[1 - culprit].startswith(f"rank {culprit} stopped: ")
        assert f" ended with {words}" in said[1 - culprit]


def caught(rank: int, world: int, name: str) -> list[float]:
    """Both ranks' closures fail in words of their own, and their scripts go on. Then rank 1 keeps
    the other waiting for longer than it takes to look what a peer has said."""
    model, optimizer = frozen_mlp()
    distributed(rank, world, CASES[name], model, optimizer)

    def fail() -> float:
        raise ValueError(f"rank {rank} has no loss")

    for iteration in range(3 * LAST):
        if (rank, iteration) == (1, LAST + 1):
            time.sleep(2 * LOOK_SECONDS)
        optimizer.zero_grad()
        loss_of(model, iteration, rank).backward()
        if iteration == LAST:
            with pytest.raises(ValueError, match="has no loss"):
                optimizer.step(fail)
        optimizer.step()
    autosync.detach(model)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


@pytest.mark.parametrize("name", CASES)
def test_a_script_that_catches_an_error_goes_on(pair: Ranks, name: str) -> None:
    first, second = pair.run(caught, name)
    assert first == second
