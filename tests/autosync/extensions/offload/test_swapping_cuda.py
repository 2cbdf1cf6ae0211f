"""Swapping on an NVIDIA GPU: pinned buffers, streams and events in place of threads."""

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import autosync
from autosync.extensions.offload.attachment import HostSwapper
from autosync.extensions.offload.attachment import attach as swap_to_host
from autosync.extensions.offload.device import GpuMemory
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.schedule import least_budget_bytes
from tests.autosync.extensions.offload.swapped_training import ROOMY, batch_of, make, train_step
from tests.autosync.extensions.offload.test_swapped_ranks import bundle_of
from tests.autosync.runtime.place import HERE
from tests.autosync.runtime.ranks import Ranks, ranks

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="NOT VERIFIED: this machine has no NVIDIA GPU"
    ),
]
BATCH = 8192
STEPS = 5


def trained(
    name: str, device: torch.device, budget_bytes: int | None, with_state: bool = False
) -> tuple[list[Tensor], int, int, bool]:
    """Values afterwards, the peak of the last step, the least budget, and whether the last pass was
    scheduled with something moved."""
    gc.collect()  # the model of before is part of a cycle with its hooks, and would count
    model, _ = make(name)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    swapper: HostSwapper | None = None
    if budget_bytes:
        swapper = swap_to_host(model, Offload(budget_bytes, with_state), [optimizer])
    torch.manual_seed(11)
    for step in range(STEPS):
        torch.cuda.reset_peak_memory_stats(device)
        train_step(model, optimizer, batch_of(step, BATCH).to(device))
    peak = GpuMemory(device).take_peak_bytes()
    values = [value.detach().cpu() for value in model.parameters()]
    if swapper is None or swapper.recorded is None or swapper.schedule is None:
        return values, peak, 0, False
    followed = swapper.is_following and not swapper.deviations
    moved = swapper.schedule.moved_bytes > 0
    return values, peak, least_budget_bytes(swapper.recorded.moments), followed and moved


@pytest.mark.parametrize(
    ("name", "with_state"), [("blocks", False), ("attention", False), ("wide", True)]
)
def test_a_gpu_holds_no_more_than_the_budget(name: str, with_state: bool) -> None:
    device = torch.device("cuda", 0)
    plain, plain_peak, _, _ = trained(name, device, None)
    _, _, least, _ = trained(name, device, ROOMY, with_state)
    budget = (7 * least + plain_peak) // 8 if with_state else (least + plain_peak) // 2
    assert least < budget
    swapped, peak, _, followed = trained(name, device, budget, with_state)
    assert all(torch.equal(one, other) for one, other in zip(plain, swapped, strict=True))
    assert followed
    assert peak <= budget


@pytest.fixture(scope="module")
def gloo() -> Iterator[Ranks]:
    with ranks(2, way="cuda") as made:
        yield made


def train_plan(rank: int, world: int, budget_bytes: int | None) -> list[Tensor]:
    model, _ = make("blocks")
    model.to(HERE.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    bundle = bundle_of("all-reduce", model, world, budget_bytes)
    network, optimizer = autosync.distribute(model, optimizer, bundle)
    torch.manual_seed(rank)
    for step in range(STEPS):
        train_step(network, optimizer, batch_of(step, BATCH, rank).to(HERE.device))
    plain, _ = autosync.detach(network)
    return [value.detach().cpu() for value in plain.parameters()]


def test_two_ranks_train_to_the_bit(gloo: Ranks) -> None:
    plain, swapped = gloo.run(train_plan, None), gloo.run(train_plan, 1 << 28)
    for values, others in zip(plain, swapped, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(values, others, strict=True))
