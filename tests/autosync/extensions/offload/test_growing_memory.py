"""Scripts that hold a little more of the device in each step: passes keep to their schedule."""

from typing import Any

import pytest
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
    least_bytes,
    make,
    swapping,
    train_step,
)

SWAPS: list[dict[str, Any]] = [
    {"with_state": False},
    {"with_state": True},
    {"with_state": True, "with_values": True},
]
WARM_UP = 5
SIZES = (DEEP_BATCH,) * WARM_UP


def warmed_up(budget: int, how: dict[str, Any]) -> tuple[nn.Module, Optimizer, HostSwapper]:
    model, optimizer = make("deep")
    swapper = swapping(model, budget, optimizer, **how)
    assert swapper is not None
    for step in range(WARM_UP):
        train_step(model, optimizer, batch_of(step, DEEP_BATCH))
    return model, optimizer, swapper


def step_that_logs(
    model: nn.Module, optimizer: Optimizer, batch: Tensor, losses: list[Tensor]
) -> None:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    losses.append(loss.detach())
    optimizer.step()


@pytest.mark.parametrize("how", SWAPS)
def test_a_list_of_losses_takes_no_new_schedule_in_every_pass(how: dict[str, Any]) -> None:
    budget = least_bytes("deep", sizes=SIZES, **how) * 21 // 20
    model, optimizer = make("deep")
    losses: list[Tensor] = []
    with Arena(ROOMY):
        swapper = swapping(model, budget, optimizer, **how)
        assert swapper is not None
        for step in range(WARM_UP):
            step_that_logs(model, optimizer, batch_of(step, DEEP_BATCH), losses)
        before = swapper.schedule
        for step in range(4):
            step_that_logs(model, optimizer, batch_of(step, DEEP_BATCH), losses)
            assert swapper.is_following
        assert swapper.schedule is before


@pytest.mark.parametrize("how", SWAPS)
def test_what_grows_beyond_the_headroom_is_counted_on(how: dict[str, Any]) -> None:
    budget = least_bytes("deep", sizes=SIZES, **how) * 21 // 20
    with Arena(ROOMY):
        model, optimizer, swapper = warmed_up(budget, how)
        assert swapper.recorded is not None
        before, least = swapper.schedule, least_budget_bytes(swapper.recorded.moments)
        held = torch.zeros(least // 200, dtype=torch.uint8)
        for step in range(3):
            train_step(model, optimizer, batch_of(step, DEEP_BATCH))
            assert swapper.is_following
        assert swapper.schedule is not before
        assert least_budget_bytes(swapper.recorded.moments) >= least + held.numel()


def test_what_is_there_only_where_a_pass_begins_is_no_reason_to_refuse_the_budget() -> None:
    budget = least_bytes("deep", sizes=SIZES)
    with Arena(ROOMY):
        model, optimizer, swapper = warmed_up(budget, {"with_state": False})
        held = [torch.zeros(256)]
        model.register_forward_pre_hook(lambda module, args: held.clear())  # behind the swapper's
        for step in range(3):
            train_step(model, optimizer, batch_of(step, DEEP_BATCH))
        assert swapper.is_following
