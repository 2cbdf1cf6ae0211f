"""An error on one rank ends the others only where they cannot go on: what a script catches, and
goes on from, ends nothing."""

import atexit
import os
import time
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
from autosync.runtime.execution.monitor import LOOK_SECONDS
from tests.autosync.runtime.cases import Case, attached, data, loss_of, make_optimizer
from tests.autosync.runtime.distributing import (
    CASES,
    PLANS,
    distributed,
    ended_alone,
    looking_often,
    refusal,
)
from tests.autosync.runtime.ranks import ANSWER_SECONDS, Ranks, ranks

FAULTY = 2
"""The iteration in which one rank's script meets an error."""


def training(
    rank: int, world: int, case: Case, max_grad_norm: float | None = None
) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    optimizer = make_optimizer("sgd", model)
    distributed(rank, world, case, model, optimizer, max_grad_norm)
    return model, optimizer


def passes(model: nn.Module, optimizer: Optimizer, iteration: int, rank: int) -> None:
    optimizer.zero_grad()
    model(data(iteration, rank)[0]).square().mean().backward()


def no_loss() -> float:
    raise ValueError("there is no loss")


NO_LOSS = "rank 1 stopped: optimizer.step() ended with ValueError: there is no loss"


def caught(rank: int, world: int, case: Case) -> list[float]:
    """Rank 1's script catches an error of its closure, and is busy with that for longer than it
    takes the other rank to look."""
    model, optimizer = training(rank, world, case)
    for iteration in range(FAULTY + 3):
        passes(model, optimizer, iteration, rank)
        if (rank, iteration) == (1, FAULTY):
            with pytest.raises(ValueError, match="no loss"):
                optimizer.step(no_loss)
            time.sleep(3 * LOOK_SECONDS)
        optimizer.step()
    autosync.detach(model)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


@pytest.mark.parametrize("name", CASES)
def test_a_script_that_catches_an_error_goes_on(pair: Ranks, name: str) -> None:
    first, second = pair.run(caught, CASES[name])
    assert first == second


def went_on_without_step(
    rank: int, world: int, case: Case, max_grad_norm: float | None = None
) -> str:
    """Rank 1's script catches the error and leaves the iteration out. Rank 0 has stepped."""
    model, optimizer = training(rank, world, case, max_grad_norm)

    def iterations() -> None:
        for iteration in range(FAULTY + 3):
            passes(model, optimizer, iteration, rank)
            if (rank, iteration) == (1, FAULTY):
                with pytest.raises(ValueError, match="no loss"):
                    optimizer.step(no_loss)
            else:
                optimizer.step()

    with looking_often():
        return ended_alone(model, rank == 1, iterations)


def test_values_of_a_step_that_was_left_out_are_not_waited_for(pair: Ranks) -> None:
    first, second = pair.run(went_on_without_step, PLANS["sharded"])
    assert first.startswith(NO_LOSS)
    assert "A peer died" in second


def test_a_norm_over_gradients_that_were_dropped_is_not_waited_for() -> None:
    """No message times out here while the test waits."""
    with ranks(2, timeout_seconds=2 * ANSWER_SECONDS) as pool:
        first, second = pool.run(went_on_without_step, PLANS["sharded"], 1.0)
    assert first.startswith(NO_LOSS)
    assert "A peer died" in second


def left_out_everywhere(rank: int, world: int, case: Case) -> list[float]:
    model, optimizer = training(rank, world, case)
    with looking_often():
        for iteration in range(FAULTY + 3):
            passes(model, optimizer, iteration, rank)
            if iteration != FAULTY:
                optimizer.step()
            elif rank == 1:
                with pytest.raises(ValueError, match="no loss"):
                    optimizer.step(no_loss)
                time.sleep(LOOK_SECONDS)
    autosync.detach(model)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def test_a_step_that_every_rank_leaves_out_ends_none(pair: Ranks) -> None:
    first, second = pair.run(left_out_everywhere, PLANS["sharded"])
    assert first == second


def fails(gradient: torch.Tensor) -> None:
    raise ValueError("this gradient is wrong")


def left_a_batch_out(rank: int, world: int, case: Case) -> str:
    """Rank 1's script catches an error in the middle of its backward pass, and takes the next
    batch."""
    model, optimizer = training(rank, world, case)
    first = next(model.parameters())

    def iterations() -> None:
        for iteration in range(FAULTY + 3):
            if (rank, iteration) == (1, FAULTY):
                handle = first.register_hook(fails)
                with pytest.raises(ValueError, match="is wrong"):
                    passes(model, optimizer, iteration, rank)
                handle.remove()
            else:
                passes(model, optimizer, iteration, rank)
                optimizer.step()

    with looking_often():
        return ended_alone(model, rank == 1, iterations)


@pytest.mark.parametrize("name", PLANS)
def test_an_error_inside_of_backward_ends_the_other_rank_by_name(pair: Ranks, name: str) -> None:
    words = "the last backward pass ended with an error"
    first, second = pair.run(left_a_batch_out, PLANS[name])
    assert first.startswith(f"rank 1 stopped: {words}")
    assert second.startswith(words)


def left_in_backward(rank: int, world: int, case: Case, saves: bool = False) -> str:
    """Rank 1's script catches an error in the middle of its backward pass, and takes the plan off,
    or saves what it has before."""
    model, optimizer = training(rank, world, case)

    def iterations() -> None:
        for iteration in range(FAULTY + 3):
            if (rank, iteration) == (1, FAULTY):
                next(model.parameters()).register_hook(fails)
                with pytest.raises(ValueError, match="is wrong"):
                    passes(model, optimizer, iteration, rank)
                if saves:
                    optimizer.state_dict()
                return
            passes(model, optimizer, iteration, rank)
            optimizer.step()

    with looking_often():
        return ended_alone(model, rank == 1, iterations)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_taken_off_behind_a_failed_backward_ends_the_other_rank(
    pair: Ranks, name: str
) -> None:
    first, _ = pair.run(left_in_backward, PLANS[name])
    assert first.startswith("rank 1 stopped: the last backward pass ended with an error")


def test_a_state_gathered_behind_a_failed_backward_ends_the_other_rank(pair: Ranks) -> None:
    """At once, not when both have waited for each other until the timeout."""
    first, second = pair.run(left_in_backward, PLANS["sharded"], True)
    assert first.startswith("rank 1 stopped: the last backward pass ended with an error")
    assert second.startswith("the gathering of the optimizer's state failed: ")


def saved_within_backward(rank: int, world: int) -> list[float]:
    """A signal's handler saves: rank 1's in the middle of its backward pass, rank 0's before."""
    model, optimizer = training(rank, world, PLANS["sharded"])

    def save(_: torch.Tensor) -> None:
        optimizer.state_dict()

    with looking_often():
        for iteration in range(FAULTY + 3):
            if (rank, iteration) == (0, FAULTY):
                optimizer.state_dict()
            if (rank, iteration) == (1, FAULTY):
                handle = next(model.parameters()).register_hook(save)
                passes(model, optimizer, iteration, rank)
                handle.remove()
                time.sleep(LOOK_SECONDS)
            else:
                passes(model, optimizer, iteration, rank)
            optimizer.step()
    autosync.detach(model)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def test_a_state_gathered_within_a_backward_pass_ends_none(pair: Ranks) -> None:
    first, second = pair.run(saved_within_backward)
    assert first == second


def interrupted(rank: int, world: int) -> str:
    """A signal ends rank 1's script in the middle of its update. It saves what it has."""
    model, optimizer = training(rank, world, PLANS["all-reduce"])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def iterations() -> None:
        for iteration in range(FAULTY + 3):
            passes(model, optimizer, iteration, rank)
            if (rank, iteration) == (1, FAULTY):
                stopping = patch.object(torch.optim.SGD, "step", interrupt)
                with stopping, pytest.raises(KeyboardInterrupt):
                    optimizer.step()
                model.state_dict()
            else:
                optimizer.step()

    with looking_often():
        return ended_alone(model, rank == 1, iterations)


def test_an_update_that_a_signal_has_ended_is_not_waited_for(pair: Ranks) -> None:
    """Neither by the script itself, whose values are half updated, nor by the other rank."""
    first, second = pair.run(interrupted)
    assert second.startswith("the optimizer's update ended with KeyboardInterrupt")
    assert first == f"rank 1 stopped: {second}"


def left_with_messages_under_way(rank: int, world: int) -> bool:
    """Rank 1's script ends in the middle of its backward pass, while rank 0 is busy elsewhere and
    joins none of its messages, until the end is over. Whether one is under way behind that."""
    model, optimizer, attachment = attached(Case(groups=4), world)
    loss_of(model, 0, rank).backward()
    optimizer.step()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["left"], timedelta(seconds=60))
        with suppress(AutosyncError):  # the other one has gone
            attachment.detach()
        return False
    next(model.parameters()).register_hook(fails)
    with pytest.raises(ValueError, match="is wrong"):
        loss_of(model, 1, rank).backward()
    full = [bucket for bucket in attachment.engine.buckets if not bucket.missing_gradients]
    under_way = any(not bucket.reduced for bucket in full)
    with (
        patch("autosync.runtime.attachment.EXIT_SECONDS", 1.0),
        patch("autosync.runtime.execution.engine.EXIT_SECONDS", 100.0),  # longer than rank 0 waits
    ):
        attachment.at_exit()
    store.set("left", "")
    return under_way


def test_a_script_ends_although_a_peer_does_not_join_its_messages() -> None:
    with ranks(2) as pool:
        assert pool.run(left_with_messages_under_way) == [False, True]


TIMEOUT_SECONDS = 8.0


def never_returned(rank: int, world: int, case: Case) -> str:
    """Rank 1's script catches the error, and does something else for ever."""
    model, optimizer = training(rank, world, case)
    said = ""
    for iteration in range(FAULTY + 3):
        try:
            passes(model, optimizer, iteration, rank)
            optimizer.step(no_loss if (rank, iteration) == (1, FAULTY) else None)
        except Exception as error:
            said = str(error)
            break
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["ended"], timedelta(seconds=60))
    else:
        store.set("ended", said)
    with suppress(AutosyncError):  # the other one has gone
        autosync.detach(model)
    return said


@pytest.mark.parametrize("name", ["all-reduce", "sharded", "clocks"])
def test_a_rank_that_never_comes_back_is_waited_for_until_the_timeout(name: str) -> None:
    with ranks(2, timeout_seconds=TIMEOUT_SECONDS) as pool:
        first, second = pool.run(never_returned, CASES[name])
    assert first.startswith(NO_LOSS)
    assert second == "there is no loss"


def uncaught(rank: int, world: int, case: Case, culprit: int) -> str:
    """Nobody catches the error of one rank's script: the interpreter ends as it always does."""
    model, optimizer = training(rank, world, case)

    def iterations() -> None:
        for iteration in range(FAULTY + 3):
            passes(model, optimizer, iteration, rank)
            optimizer.step(no_loss if (rank, iteration) == (culprit, FAULTY) else None)

    if rank != culprit:
        said = refusal(iterations)
        with suppress(AutosyncError):  # the other one has gone
            autosync.detach(model)
        return said
    with pytest.raises(ValueError, match="no loss"):
        iterations()
    atexit._run_exitfuncs()
    os._exit(1)


@pytest.mark.parametrize(
    ("name", "culprit"), [("all-reduce", 0), ("sharded", 1), ("server", 0), ("clocks", 0)]
)
def test_an_error_that_no_script_catches_ends_the_other_rank_by_name(
    name: str, culprit: int
) -> None:
    """Rank 0 holds the store. No message times out here while the test waits."""
    with ranks(2, timeout_seconds=2 * ANSWER_SECONDS) as pool:
        found = pool.answers(uncaught, CASES[name], culprit)
    assert found[culprit] == ("error", "died")
    assert found[1 - culprit][1].startswith(NO_LOSS.replace("1", str(culprit)))
