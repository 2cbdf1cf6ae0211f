"""Values whose transfer from the host has begun and not ended: nobody reads or overwrites them. And
values that should have left and could not: they are back where they were."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import HostSwapper
from autosync.extensions.offload.device import ThreadTransfers
from autosync.extensions.offload.parameter_values import SwappedValue
from autosync.extensions.offload.schedule import least_budget_bytes
from tests.autosync.extensions.offload.swapped_training import (
    BATCH,
    ROOMY,
    batch_of,
    make,
    same,
    swapping,
)

OPENS_SECONDS = 0.3
"""Long enough for the script to do what it does while the link is closed."""


def begin_to_come(swapper: HostSwapper) -> list[SwappedValue]:
    """As a schedule begins to bring all that is away; nothing of it has arrived."""
    away = [value for value in swapper.values.tensors if value.on_device is None]
    assert away
    for value in away:
        value.come()
    return away


@contextmanager
def closed_link(swapper: HostSwapper) -> Iterator[threading.Event]:
    """Nothing arrives from the host until the event is set, which the end does."""
    transfers = swapper._parts.device.transfers
    assert isinstance(transfers, ThreadTransfers)
    opened = threading.Event()
    transfers._coming.submit(opened.wait)
    try:
        yield opened
    finally:
        opened.set()


def test_a_value_on_its_way_is_not_read_before_it_is_there() -> None:
    model, optimizer = make("broad", by_sgd=True)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with Arena(ROOMY):
        swapper = swapping(model, ROOMY, optimizer, with_values=True)
        assert swapper is not None
        loss = model(batch_of(0)).square().mean()  # a pass on demand: what is not read is away
        with closed_link(swapper) as opened:
            coming = begin_to_come(swapper)
            for value in coming:
                with pytest.raises(RuntimeError, match="are in host memory"):
                    value.parameter.sum()
            opened.set()
            for value in coming:
                value.bring()
        assert same([parameter.detach() for parameter in model.parameters()], before)
        loss.backward()


def test_a_value_on_its_way_may_be_given_up_again() -> None:
    model, optimizer = make("broad", by_sgd=True)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with Arena(ROOMY) as arena:
        swapper = swapping(model, ROOMY, optimizer, with_values=True)
        assert swapper is not None
        loss = model(batch_of(0)).square().mean()
        held = arena.allocated_bytes()
        for value in begin_to_come(swapper):
            value.release()
            assert value.on_device is None
            with pytest.raises(RuntimeError, match="are in host memory"):
                value.parameter.sum()
        assert arena.allocated_bytes() == held
        loss.backward()
        assert same([parameter.detach() for parameter in model.parameters()], before)


def test_taken_off_within_a_pass_it_waits_for_what_is_on_its_way() -> None:
    """Else a transfer overwrites what the script writes afterwards: a snapshot's values, say."""
    model, optimizer = make("broad", by_sgd=True)
    with Arena(ROOMY):
        swapper = swapping(model, ROOMY, optimizer, with_values=True)
        assert swapper is not None
        model(batch_of(0)).square().mean()
        with closed_link(swapper) as opened:
            coming = begin_to_come(swapper)
            threading.Timer(OPENS_SECONDS, opened.set).start()
            swapper.remove()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(7.0)
        for value in coming:
            assert value._coming is not None
            swapper._parts.device.transfers.finish(value._coming)
        assert all(bool((parameter == 7.0).all()) for parameter in model.parameters())


def two_backward_passes(budget: int, held_in: int | None) -> tuple[HostSwapper, bool]:
    """Each step; within the one that is named somebody holds views of values from the forward pass
    to the end of the first backward pass. And whether values were on the device behind each step's
    second one. The last step is not as recorded."""
    model, optimizer = make("broad", by_sgd=True)
    held: list[Tensor] = []
    are_here = True

    def hold(module: nn.Module, *given: object) -> None:
        if step == held_in and isinstance(module, nn.Linear):
            held.append(module.weight.detach())

    with Arena(ROOMY):
        swapper = swapping(model, budget, optimizer, with_values=True)
        assert swapper is not None
        for module in model.modules():
            module.register_forward_hook(hold)
        for step in range(4):
            optimizer.zero_grad()
            loss = model(batch_of(step, BATCH if step < 3 else BATCH // 2)).square().mean()
            loss.backward(retain_graph=True)
            held.clear()
            loss.backward()
            are_here = are_here and swapper.values.are_here()
            optimizer.step()
    return swapper, are_here


@pytest.mark.parametrize("held_in", range(4))
def test_what_could_not_leave_does_not_do_so_behind_the_backward_pass(held_in: int) -> None:
    """In a pass on demand, in scheduled ones, and in one that is not as recorded."""
    told, _ = two_backward_passes(ROOMY, None)
    assert told.recorded is not None
    least = least_budget_bytes(told.recorded.moments)
    swapper, are_here = two_backward_passes(least if held_in else ROOMY, held_in)
    assert are_here
    assert swapper.schedule is not None
    assert held_in == 0 or swapper.schedule.moved_bytes > 0
