"""`autosync.tune` on two ranks whose devices have no room for torch's DDP: the answer swaps.

A device is an arena: more bytes of tensors than its budget are an error, as on a GPU.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.bundle import load_bundle
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import attach as swap_to_host
from autosync.extensions.offload.document import Offload, budget_within
from autosync.extensions.offload.schedule import least_budget_bytes
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.settings import Settings
from tests.autosync.extensions.offload.swapped_training import ROOMY, batch_of, blocks
from tests.autosync.runtime.ranks import ranks

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MINUTES = 6
"""More than a tuning of so few trials takes, also beside other load."""
STEPS = 5
SETTINGS = Settings(budget=12, proposals=64, repeats=2, probe=False)

Made = tuple[nn.Module, torch.optim.Optimizer]
Seen = list[dict[str, Any]]


def made() -> Made:
    """With the batches of `tuned` nearly all of its memory are activations."""
    torch.manual_seed(3)
    model = blocks()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> None:
    torch.manual_seed(77 + dist.get_rank())
    for batch in batches:
        train_step(model, optimizer, batch)


def step_bytes(batches: list[Tensor]) -> int:
    """What a step of DDP takes."""
    model, optimizer = made()
    with Arena(ROOMY) as arena:
        arena.count(model.parameters())
        network = DistributedDataParallel(model)
        trained(network, optimizer, batches)
        arena.take_peak_bytes()
        train_step(network, optimizer, batches[0])
        return on_any_rank(arena.take_peak_bytes())


def least_bytes(batches: list[Tensor]) -> int:
    """What a step of DDP takes with all that can wait elsewhere."""
    model, optimizer = made()
    with Arena(ROOMY) as arena:
        arena.count(model.parameters())
        network = DistributedDataParallel(model)
        swapper = swap_to_host(model, Offload(ROOMY))
        trained(network, optimizer, batches)
    assert swapper.recorded is not None
    return on_any_rank(least_budget_bytes(swapper.recorded.moments))


def on_any_rank(size_bytes: int) -> int:
    """The most that a rank tells."""
    told = [0] * dist.get_world_size()
    dist.all_gather_object(told, size_bytes)
    return max(told)


def tuned(rank: int, world: int, out: Path) -> dict[str, Any]:
    """What `autosync.tune` answers on such a device, and training there with it."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    batches = [batch_of(number, 512, rank) for number in range(STEPS)]
    peak, least = step_bytes(batches), least_bytes(batches)
    memory_bytes = (peak + least) // 2  # neither DDP nor the model alone fits; swapped it does
    assert least < budget_within(memory_bytes) < memory_bytes < peak
    events: list[TuningEvent] = []

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        train_step(model, optimizer, batches[0])

    model, optimizer = made()
    before = [value.detach().clone() for value in model.parameters()]
    with Arena(memory_bytes) as arena:
        arena.count(model.parameters())
        how: dict[str, Any] = {"minutes": MINUTES, "settings": SETTINGS, "save": out}
        network, optimizer = autosync.tune(step, model, optimizer, on_event=events.append, **how)
        restored = all(map(torch.equal, before, model.parameters()))
        trained(network, optimizer, batches)  # too much of it were an error
    dist.barrier()  # rank 0 has written the bundle before it went on
    bundle = load_bundle(out)
    plain = replace(bundle, strategy=bundle.strategy.without(Offload))
    twin, twin_optimizer = made()
    trained(*autosync.distribute(twin, twin_optimizer, plain), batches)
    model.state_dict()  # waits for what is on its way
    twin.state_dict()
    return {
        "messages": [event.message for event in events],
        "restored": restored,
        "memory_bytes": memory_bytes,
        "same": all(map(torch.equal, model.parameters(), twin.parameters())),
    }


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory-bound")


@pytest.fixture(scope="module")
def seen(out: Path) -> Iterator[Seen]:
    """What each rank saw."""
    with ranks(2) as pair:
        yield pair.run(tuned, out / "best.json")


def test_ddp_really_runs_out_of_memory(seen: Seen, out: Path) -> None:
    messages = seen[0]["messages"]
    assert "ddp: out_of_memory" in messages
    assert any(message.startswith("DDP ran out of memory; ") for message in messages)
    assert load_bundle(out / "best.json").evidence.ddp_step_seconds is None


def test_the_answer_swaps_and_was_measured_with_its_waits(seen: Seen, out: Path) -> None:
    """Trials of the others failed."""
    bundle = load_bundle(out / "best.json")
    swap = bundle.strategy.extension(Offload)
    assert swap is not None
    assert swap.budget_bytes < seen[0]["memory_bytes"]
    assert bundle.evidence.step_seconds is not None
    assert "predicted" not in bundle.evidence.measured_on
    tried = [message for message in seen[0]["messages"] if "_swapped: " in message]
    assert any(message.endswith(" ms") for message in tried)


def test_the_job_goes_on_within_its_memory_to_the_bit(seen: Seen) -> None:
    """More than its memory is an error; `same`: as the same plan trains without any limit."""
    for rank in seen:
        assert rank["restored"]
        assert rank["same"]
