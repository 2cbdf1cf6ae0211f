"""One rank is killed in the middle of training: all others get an error that says what to do."""

import os
import signal
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from autosync.runtime.attachment import Attachment
from autosync.runtime.transport.base import SynchronizationFailed
from tests.autosync.runtime.cases import Case, attached, loss_of
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.autosync.runtime.training import OVERLAP

ITERATIONS = 6
LAST = 2
"""The iteration in which the victim dies."""


@dataclass(frozen=True)
class Obituary:
    """What a survivor saw. again: a further try to train on or to save gives the same error.
    released: the model and the optimizer are the script's own again."""

    error: str
    again: bool
    released: bool


def survive(rank: int, world: int, case: Case, victim: int, moment: str) -> Obituary:
    clip = 1.0 if moment == "clipping" else None
    model, optimizer, attachment = attached(case, world, max_grad_norm=clip)
    dying = rank == victim
    if dying and moment == "backward":
        die_in_backward(model)
    try:
        for iteration in range(ITERATIONS):
            optimizer.zero_grad()
            loss_of(model, iteration, rank).backward()
            if dying and moment == "clipping" and iteration == LAST:
                die()
            optimizer.step()
            if moment == "checkpoint" and iteration == LAST:
                if dying:
                    attachment.engine.flush()
                    die()
                optimizer.state_dict()
    except SynchronizationFailed as error:
        again = all(raises_again(attachment, model, what) for what in ("forward", "save"))
        attachment.detach()
        released = type(optimizer) is torch.optim.SGD and "no_sync" not in model.__dict__
        loss_of(model, 0, rank).backward()
        return Obituary(str(error), again, released)
    return Obituary("no error", False, False)


def raises_again(attachment: Attachment, model: nn.Module, what: str) -> bool:
    try:
        loss_of(model, 0, 0) if what == "forward" else attachment.optimizers[0].state_dict()
    except SynchronizationFailed as error:
        return error is attachment.failure
    return False


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_backward(model: nn.Module) -> None:
    """Behind the last layer, whose gradient has left, in front of the first, whose has not."""
    passes = []

    def hook(gradient: torch.Tensor) -> None:
        passes.append(gradient)
        if len(passes) > LAST:
            die()

    linear(model, 2).weight.register_hook(hook)


def mourn(pool: Ranks, case: Case, victim: int, moment: str) -> list[Obituary]:
    found = []
    for rank, (kind, answer) in enumerate(pool.answers(survive, case, victim, moment)):
        if rank == victim:
            assert (kind, answer) == ("error", "died")
        else:
            assert kind == "ok", answer
            found.append(answer)
    for process in pool.processes:  # torch's own goodbye waits for the dead
        process.kill()
    return found


@pytest.mark.parametrize(
    ("method", "moment", "victim"),
    [
        ("all_reduce", "backward", 1),
        ("ps", "backward", 1),
        ("zero", "backward", 1),
        ("mixed", "backward", 0),
        ("zero", "clipping", 1),
        ("ps", "checkpoint", 2),
    ],
)
def test_a_killed_rank_is_an_error_on_every_survivor(method: str, moment: str, victim: int) -> None:
    """Rank 0 holds the store, and, as rank 1, owns variables under a parameter server."""
    case = Case(optimizer="sgd", method=method, schedule=OVERLAP, groups=4)
    with ranks(3, timeout_seconds=30.0) as pool:
        for seen in mourn(pool, case, victim, moment):
            assert "A peer died" in seen.error
            assert "from the last checkpoint" in seen.error
            assert ("optimizer's state is lost" in seen.error) == (method != "all_reduce")
            assert seen.again
            assert seen.released
