"""A training script under torchrun that tunes itself on devices without room for torch's DDP; every
rank writes what it saw as JSON.

A device is an arena: more bytes of tensors than its budget are an error, as on a GPU.
"""

import gc
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

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

MINUTES = 6
"""More than a tuning of so few trials takes, also beside other load."""
STEPS = 5
SETTINGS = Settings(budget=12, proposals=64, repeats=2, probe=False)

Made = tuple[nn.Module, torch.optim.Optimizer]


def made() -> Made:
    """With the batches of `main` nearly all of its memory are activations."""
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


def tuned(batches: list[Tensor], memory_bytes: int, out: Path) -> dict[str, Any]:
    """What `autosync.tune` answers on such a device, and training there with it."""
    messages: list[str] = []

    def note(event: TuningEvent) -> None:
        messages.append(event.message)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        train_step(model, optimizer, batches[0])

    model, optimizer = made()
    before = [value.detach().clone() for value in model.parameters()]
    with Arena(memory_bytes) as arena:
        arena.count(model.parameters())
        network, optimizer = autosync.tune(
            step,
            model,
            optimizer,
            minutes=MINUTES,
            settings=SETTINGS,
            save=out,
            on_event=note,
        )
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
        "messages": messages,
        "restored": restored,
        "memory_bytes": memory_bytes,
        "same": all(map(torch.equal, model.parameters(), twin.parameters())),
    }


def main() -> None:
    gc.freeze()  # a tuning collects garbage often; what the imports made is none
    out = Path(sys.argv[1])
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    batches = [batch_of(number, 512, rank) for number in range(STEPS)]
    peak, least = step_bytes(batches), least_bytes(batches)
    memory = (peak + least) // 2  # neither DDP nor the model alone fits; swapped there is room
    assert least < budget_within(memory) < memory < peak
    seen = tuned(batches, memory, out / "best.json")
    (out / f"rank{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
