"""What training scripts do between passes and updates, and training with such a script: optimizer
state is swapped, or values too."""

import io
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import HostSwapper
from autosync.extensions.offload.schedule import least_budget_bytes
from tests.autosync.extensions.offload.swapped_training import (
    DEEP_BATCH,
    ROOMY,
    batch_of,
    make,
    moved_kinds,
    swapping,
    train_step,
)

DEEP = (DEEP_BATCH,) * 6


def follows(swapper: HostSwapper | None) -> bool:
    """The passes went by a schedule that moves state, and the next one, just begun, will."""
    assert swapper is not None
    going_on = swapper.is_following and swapper.deviations == 0
    return going_on and "state" in moved_kinds(swapper)


def state_of(optimizer: Optimizer) -> list[Tensor]:
    return [
        value.detach().clone()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]


Between = Callable[[nn.Module, Optimizer, int], None]


def with_script(
    between: Between,
    behind: Between,
    budget: int | None,
    steps: int = 7,
    with_values: bool = False,
) -> tuple[list[Tensor], int]:
    """Values and state afterwards, where a script does something between backward and step, and
    behind it; and the least budget for that."""
    model, optimizer = make("deep")
    with Arena(ROOMY):
        swapper = swapping(model, budget, optimizer, with_values=with_values)
        for step in range(steps):
            optimizer.zero_grad()
            model(batch_of(step, DEEP_BATCH)).square().mean().backward()
            between(model, optimizer, step)
            optimizer.step()
            behind(model, optimizer, step)
        if swapper is not None:
            swapper.remove()
    values = [value.detach().clone() for value in model.parameters()]
    recorded = swapper.recorded if swapper is not None else None
    least = least_budget_bytes(recorded.moments) if recorded is not None else 0
    return values + state_of(optimizer), least


def nothing(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    pass


def evaluates(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    with torch.no_grad():
        model(batch_of(90 + step, 2 * DEEP_BATCH))


def infers(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """While state that the schedule keeps is on the device."""
    if step > 3:
        with torch.inference_mode():
            model(batch_of(90 + step, 2 * DEEP_BATCH))


def loads(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step in (2, 4):
        saved = io.BytesIO()
        torch.save(optimizer.state_dict(), saved)
        saved.seek(0)
        optimizer.load_state_dict(torch.load(saved))


def trained_on(
    steps: range, saved: bytes | None, budget: int | None, with_values: bool = False
) -> tuple[bytes, list[Tensor], HostSwapper | None]:
    """From a checkpoint, if there is one, to the next."""
    model, optimizer = make("deep")
    with Arena(budget or ROOMY) as arena:
        arena.count(model.parameters())
        if saved is not None:
            with arena.host_memory():
                checkpoint = torch.load(io.BytesIO(saved))
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            del checkpoint
        swapper = swapping(model, budget, optimizer, with_values=with_values)
        for step in steps:
            train_step(model, optimizer, batch_of(step, DEEP_BATCH))
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    return file.getvalue(), [value.detach().clone() for value in model.parameters()], swapper
