"""`autosync.tune` on ranks that have room for a model and its gradients, but not for DDP's copy of
these: real ranks under a limit of the kernel's (RLIMIT_DATA)."""

import resource
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.settings import Settings
from autosync.search.space import Space
from tests.autosync.runtime.ranks import Ranks, ranks

WIDTH, LAYERS = 3072, 8
"""Each weight takes 38 MB: the C library hands such blocks back to the kernel, so that what is
freed does not count."""
MODEL_BYTES = 4 * LAYERS * WIDTH * WIDTH

ROOM = 2.6
"""Times the model, beside its values: the tuning's copy of them and gradients take two; DDP's
buckets one more."""

SPACE = Space(
    parameter_server=False, reduce_scatter=False, factors=False, slice_bytes=(0,), max_parts=1
)
"""Whole all-reduces, whose gradients are views of the messages."""


@pytest.fixture
def world() -> Iterator[Ranks]:
    with ranks(2) as pool:
        yield pool


def layers(width: int, count: int) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    width = next(model.parameters()).shape[1]
    model(torch.ones(2, width)).square().mean().backward()
    optimizer.step()


def tuned(model: nn.Module, minutes: float) -> tuple[nn.Module, torch.optim.Optimizer, list[str]]:
    """The model and its optimizer after a tuning, and what was said on the way."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told: list[str] = []

    def note(event: TuningEvent) -> None:
        told.append(event.message)

    settings = Settings(budget=4, proposals=64, repeats=1, warmup=1, iterations=1, probe=False)
    model, optimizer = autosync.tune(
        train, model, optimizer, minutes=minutes, settings=settings, space=SPACE, on_event=note
    )
    return model, optimizer, told


def data_bytes() -> int:
    """What the kernel counts for RLIMIT_DATA."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (size,) = [line.split()[1] for line in lines if line.startswith("VmData:")]
    return int(size) * 1024


def tuned_within_a_limit(rank: int, world: int) -> dict[str, Any]:
    tuned(layers(8, 2), minutes=2)  # what a first tuning loads does not count
    model = layers(WIDTH, LAYERS)
    before = [parameter.detach().clone()[:4, :4] for parameter in model.parameters()]
    limit = data_bytes() + int(ROOM * MODEL_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        after, optimizer, told = tuned(model, minutes=5)
    kept = all(
        torch.equal(old, new[:4, :4]) for old, new in zip(before, model.parameters(), strict=True)
    )
    train(after, optimizer)
    return {
        "told": told,
        "kept": kept,
        "ddp": isinstance(after, DistributedDataParallel),
        "warned": [str(one.message) for one in caught],
        "sums": [float(parameter.sum()) for parameter in model.parameters()],
    }


@pytest.mark.timeout(300)
def test_a_tuning_survives_ddp_out_of_memory_and_compares_what_fits(world: Ranks) -> None:
    first, second = world.run(tuned_within_a_limit)
    assert "ddp: out_of_memory" in first["told"]
    assert first["told"][-1].startswith("DDP ran out of memory; ")
    for rank in (first, second):
        assert rank["kept"]
        assert not rank["ddp"]
        assert not any("no answer" in text for text in rank["warned"])
    assert first["sums"] == second["sums"]  # it trains on, within the limit
