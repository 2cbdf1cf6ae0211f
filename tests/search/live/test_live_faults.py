"""What `autosync.tune` refuses before a trial, and what becomes of it when a rank is lost."""

import os
import signal
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.settings import Settings
from autosync.search.space import Space
from autosync.trials.live import job as live_job
from autosync.trials.live import job_pool
from autosync.trials.live.job import ControlGroup
from tests.autosync.runtime.cases import Case, attached
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.search.live.live_training import refusal_of

RECORDED_STEPS = 4
"""Plain ones, before the first trial."""

TRIAL_SECONDS = 3.0


@pytest.fixture(scope="module")
def world() -> Iterator[Ranks]:
    with ranks(2) as pool:
        yield pool


class Compiled(nn.Module):
    """As torch.compile wraps a model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._orig_mod = inner


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()


def refused(rank: int, world: int) -> dict[str, str]:
    """By case, the error of this rank."""
    found = {}
    for name, (model, optimizer, options) in cases(rank).items():
        found[name] = refusal(model, optimizer, options)
    model, optimizer, attachment = attached(Case(), world)
    found["distributed"] = refusal(model, optimizer, {})
    attachment.detach()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, _ = small()
        first = next(model.children())
        found["unheld"] = refusal(model, torch.optim.SGD(first.parameters(), lr=0.1), {})
    found["warned"] = " ".join(str(one.message) for one in caught)
    return found


def cases(rank: int) -> dict[str, tuple[nn.Module, Any, dict[str, Any]]]:
    model, optimizer = small()
    stray = [nn.Parameter(torch.zeros(2))] if rank == 1 else []
    foreign = torch.optim.SGD([*model.parameters(), *stray], lr=0.1)
    halves = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model.children()]
    inner, of_inner = small()
    replicated = DistributedDataParallel(inner)
    return {
        "foreign": (model, foreign, {}),
        "wrapped": (replicated, of_inner, {}),
        "around": (inner, of_inner, {}),
        "inside": (nn.Sequential(replicated), of_inner, {}),
        "option": (model, optimizer, {"ddp_options": {"find_unused": True}}),
        "buffers": (model, optimizer, {"ddp_options": {"broadcast_buffers": False}}),
        "others": (model, optimizer, {"others": [object()]}),
        "clipped": (model, halves, {"max_grad_norm": 1.0}),
        "closure": (model, torch.optim.LBFGS(model.parameters()), {}),
        "no folder": (model, optimizer, {"save": "/nowhere/best.json"}),
        "no folder of trials": (model, optimizer, {"trials": "/nowhere/trials.json"}),
        "a folder": (model, optimizer, {"save": "/"}),
        "shares": (model, optimizer, {"space": Space(uneven_shares=True)}),
        "late": (model, optimizer, {"space": Space(staleness=(0, 2))}),
        "compiled": (Compiled(model), optimizer, {}),
        "compiled part": (nn.Sequential(Compiled(model)), optimizer, {}),
    }


def refusal(model: nn.Module, optimizer: Any, options: dict[str, Any]) -> str:
    def step(model: nn.Module, optimizer: Any) -> None:
        raise ValueError("a step ran")

    return refusal_of(autosync.tune, step, model, optimizer, **options)


@pytest.fixture(scope="module")
def refusals(world: Ranks) -> list[dict[str, str]]:
    return world.run(refused)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("foreign", "1 parameters that are not the model's"),
        ("wrapped", "it is torch's DistributedDataParallel"),
        ("around", "DistributedDataParallel is around it"),
        ("inside", "its module '0' is torch's DistributedDataParallel"),
        ("distributed", "follows a plan"),
        ("option", "no option 'find_unused'"),
        ("buffers", "broadcast_buffers=False contradicts the plan"),
        ("others", "others[0] (object) has no state_dict"),
        ("clipped", "max_grad_norm was given with several optimizers"),
        ("closure", "LBFGS.step() needs a closure"),
        ("no folder", "save is '/nowhere/best.json', and there is no folder"),
        ("no folder of trials", "trials is '/nowhere/trials.json', and there is no folder"),
        ("a folder", "save is '/', and that is a folder"),
        ("shares", "space: uneven_shares is true, and each rank of a running job"),
        ("late", "space: staleness is [0, 2], and trials in a running job are synchronous"),
        ("compiled", "the model is compiled"),
        ("compiled part", "module '0' of the model is compiled"),
    ],
)
def test_misuse_is_refused_before_the_first_trial(
    refusals: list[dict[str, str]], case: str, words: str
) -> None:
    for rank in refusals:
        assert words in rank[case]


def test_a_refusal_of_one_rank_reaches_every_rank(refusals: list[dict[str, str]]) -> None:
    assert refusals[0]["foreign"].startswith("rank 1 cannot tune: ")
    assert not refusals[1]["foreign"].startswith("rank 1 cannot tune: ")


def test_parameters_without_an_optimizer_are_warned_of(refusals: list[dict[str, str]]) -> None:
    for rank in refusals:
        assert rank["unheld"] == "a step ran"
        assert "no optimizer holds 2 trainable parameters" in rank["warned"]


def losing(rank: int, world: int, way: str) -> tuple[str, bool]:
    """The error of a tuning that loses rank 1 in its first trial, and whether the model is what it
    was. Where rank 1 is stuck, it is until rank 0 has given it up."""
    store = dist.distributed_c10d._get_default_store()
    job_pool.LATE = timedelta(seconds=1)
    live_job.LEAVING = timedelta(seconds=2 if way == "killed" else 10)
    model, optimizer = small()
    calls = [0]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        calls[0] += 1
        if rank == 1 and calls[0] == RECORDED_STEPS + 2:
            if way == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            store.wait(["given up"], timedelta(seconds=120))
        train(model, optimizer)

    settings = Settings(budget=2, proposals=8, timeout_seconds=TRIAL_SECONDS, probe=False)
    before: list[torch.Tensor] = []

    def note(event: TuningEvent) -> None:
        """Before the first trial."""
        if not before:
            before.extend(parameter.clone() for parameter in model.parameters())

    meet = ControlGroup.meet

    def meet_or_tell(control: ControlGroup, patience: timedelta) -> None:
        try:
            meet(control, patience)
        except SynchronizationFailed:
            store.set("given up", "")
            raise

    try:
        with patch.object(ControlGroup, "meet", meet_or_tell):
            autosync.tune(step, model, optimizer, settings=settings, on_event=note)
    except SynchronizationFailed as error:
        pairs = zip(before, model.parameters(), strict=rank == 0)
        return str(error), all(torch.equal(a, b) for a, b in pairs)
    return "no error", False


def test_a_rank_that_is_stuck_in_the_step_ends_the_tuning_on_all(world: Ranks) -> None:
    """It is nobody's to kill; the others say who it is instead of waiting for it."""
    (first, restored), (second, _) = world.run(losing, "stuck")
    assert restored
    assert "a rank of the job was lost" in first
    assert "Ranks 1 failed" in first
    assert "a rank of the job was lost" in second


def test_a_rank_that_dies_ends_the_tuning(world: Ranks) -> None:
    (kind, (error, restored)), lost = world.answers(losing, "killed")
    assert kind == "ok"
    assert "a rank of the job was lost" in error
    assert "Start all ranks again from the last checkpoint" in error
    assert restored
    assert lost == ("error", "died")
    for process in world.processes:  # torch's own goodbye waits for the dead
        process.kill()
