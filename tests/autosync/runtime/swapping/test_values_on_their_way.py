"""Values whose transfer from the host has begun and not ended: nobody reads or overwrites them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from autosync.runtime.swapping.arena import Arena
from autosync.runtime.swapping.host_swapper import HostSwapper
from autosync.runtime.swapping.host_transfers import ThreadTransfers
from autosync.runtime.swapping.swapped_values import SwappedValue
from tests.autosync.runtime.swapping.swapped_training import (
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
