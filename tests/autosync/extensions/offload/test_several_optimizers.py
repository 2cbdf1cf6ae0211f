"""Optimizer state that waits in host memory, of models with more than one optimizer."""

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import HostSwapper
from autosync.extensions.offload.attachment import attach as swap_to_host
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.schedule import least_budget_bytes
from tests.autosync.extensions.offload.swapped_scripts import (
    follows,
)
from tests.autosync.extensions.offload.swapped_training import (
    DEEP_BATCH,
    ROOMY,
    SMALLEST_BYTES,
    batch_of,
    make,
    same,
)


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = make("deep")[0], make("deep")[0]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.tanh(self.first(x)) + self.second(x)
        return out


def two_optimizers(
    budget_bytes: int | None, together: bool, with_values: bool
) -> tuple[list[Tensor], HostSwapper]:
    """together: both step behind each backward pass, else in turn."""
    torch.manual_seed(5)
    model = Halves()
    both: list[Optimizer] = [
        torch.optim.AdamW(model.first.parameters(), lr=1e-2),
        torch.optim.SGD(model.second.parameters(), lr=1e-2, momentum=0.9),
    ]
    with Arena(ROOMY):
        swap = Offload(budget_bytes or ROOMY, optimizer_state=True, values=with_values)
        swapper = swap_to_host(model, swap, both, SMALLEST_BYTES)
        if budget_bytes is None:
            swapper.remove()
        for step in range(8):
            for optimizer in both:
                optimizer.zero_grad()
            model(batch_of(step, DEEP_BATCH)).square().mean().backward()
            for optimizer in both if together else [both[step % 2]]:
                optimizer.step()
    return [value.detach().clone() for value in model.parameters()], swapper


@pytest.mark.parametrize("with_values", [False, True])
@pytest.mark.parametrize("together", [True, False])
def test_several_optimizers_update_each_its_own(together: bool, with_values: bool) -> None:
    plain, _ = two_optimizers(None, together, with_values)
    told, roomy = two_optimizers(ROOMY, together, with_values)
    assert same(told, plain)
    assert roomy.recorded is not None
    least = least_budget_bytes(roomy.recorded.moments)
    swapped, swapper = two_optimizers(least * 21 // 20, together, with_values)
    assert same(swapped, plain)
    if together:
        assert follows(swapper)


def test_an_optimizer_that_steps_every_second_time_does_not_move_where_passes_begin() -> None:
    torch.manual_seed(5)
    model = Halves()
    seldom, often = (
        torch.optim.AdamW(half.parameters(), lr=1e-2) for half in (model.first, model.second)
    )
    followed: list[bool] = []
    with Arena(ROOMY):
        swapper = swap_to_host(model, Offload(ROOMY, True), [seldom, often], SMALLEST_BYTES)
        for step in range(10):
            model.zero_grad()
            model(batch_of(step, DEEP_BATCH)).square().mean().backward()
            if step % 2:
                seldom.step()
            often.step()
            if not step % 2:  # both have not stepped: the next forward pass ends this one
                followed.append(swapper.is_following)
    assert all(followed[2:])
