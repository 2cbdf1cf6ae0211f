"""Optimizer state that waits in host memory between updates: the same training to the bit, in
memory that holds neither plain training nor one whose activations alone are swapped."""

import pytest
import torch

from autosync.errors import DeviceMemoryExceeded, InvalidStrategy
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import attach as swap_to_host
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.optimizer_states import StateTensor
from tests.autosync.extensions.offload.swapped_scripts import (
    DEEP,
    follows,
    state_of,
)
from tests.autosync.extensions.offload.swapped_training import (
    BATCH,
    MODELS,
    ROOMY,
    Trained,
    batch_of,
    least_bytes,
    make,
    same,
    saved_count,
    swapping,
    train_step,
    trained,
)

DEEP_ACTIVATIONS = 10
"""Of the deep model at least so many are saved."""


def test_it_trains_where_neither_plain_training_nor_swapped_activations_fit() -> None:
    plain = trained("deep", sizes=DEEP)
    activations = least_bytes("deep", sizes=DEEP)
    both = least_bytes("deep", sizes=DEEP, with_state=True)
    assert both < activations < max(plain.peak_bytes)
    for budget in (None, both):
        with pytest.raises((DeviceMemoryExceeded, InvalidStrategy)):
            trained("deep", budget, arena_bytes=both, sizes=DEEP)
    swapped = trained("deep", both, arena_bytes=both, sizes=DEEP, with_state=True)
    assert same(swapped.values, plain.values)
    assert follows(swapped.swapper)


def test_between_least_and_enough_some_of_it_stays() -> None:
    plain = trained("deep", sizes=DEEP)
    least = least_bytes("deep", sizes=DEEP, with_state=True)
    budget = (3 * least + max(plain.peak_bytes)) // 4
    swapped = trained(
        "deep", budget, arena_bytes=budget, sizes=DEEP, bytes_per_second=1e9, with_state=True
    )
    assert same(swapped.values, plain.values)
    assert follows(swapped.swapper)
    assert swapped.swapper is not None
    schedule = swapped.swapper.schedule
    assert schedule is not None
    assert schedule.kept.any()
    assert swapped.peak_bytes[-1] <= schedule.peak_bytes <= budget


@pytest.mark.parametrize("name", MODELS)
def test_other_models_train_to_the_bit_in_the_least_memory(name: str) -> None:
    sizes = (BATCH,) * 6
    plain, least = trained(name, sizes=sizes), least_bytes(name, sizes=sizes, with_state=True)
    assert least <= least_bytes(name, sizes=sizes)
    swapped = trained(name, least, arena_bytes=least, sizes=sizes, with_state=True)
    assert same(swapped.values, plain.values)


def test_its_bytes_really_leave_and_its_values_stay_where_they_are_read() -> None:
    model, optimizer = make("deep")
    twin, twin_optimizer = make("deep")
    with Arena(ROOMY) as arena:
        swapper = swapping(model, ROOMY, optimizer)
        assert swapper is not None
        for step in range(2):
            train_step(model, optimizer, batch_of(step))
            train_step(twin, twin_optimizer, batch_of(step))
        optimizer.zero_grad()
        before = arena.allocated_bytes()
        loss = model(batch_of(2)).square().mean()  # a pass on demand: all of it is away
        assert swapper.states.tensors
        assert all(tensor.on_device is None for tensor in swapper.states.tensors)
        assert arena.allocated_bytes() - before < sum(t.size_bytes for t in swapper.states.tensors)
        assert same(state_of(optimizer), state_of(twin_optimizer))
        loss.backward()
        assert same(state_of(optimizer), state_of(twin_optimizer))


def test_plain_sgd_has_no_state_to_move() -> None:
    model, _ = make("blocks")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Arena(ROOMY):
        swapper = swapping(model, ROOMY, optimizer)
        assert swapper is not None
        for step in range(4):
            train_step(model, optimizer, batch_of(step))
    assert swapper.states.tensors == []
    assert swapper.is_following


def test_state_that_shares_its_memory_with_something_else_stays() -> None:
    model, _ = make("deep")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = next(model.parameters())
    both = torch.zeros(2, *weight.shape)
    optimizer.state[weight] = {"one": both[0], "other": both[1], "own": torch.zeros_like(weight)}
    with Arena(ROOMY):
        swapper = swapping(model, ROOMY, optimizer)
        assert swapper is not None
        (moved,) = swapper.states.tensors
    assert isinstance(moved, StateTensor)
    assert moved.shown is optimizer.state[weight]["own"]


def test_where_activations_are_too_small_to_move_state_is_scheduled_all_the_same() -> None:
    model, optimizer = make("deep")
    with Arena(ROOMY):
        told = swap_to_host(model, Offload(ROOMY, True), [optimizer], 1 << 13)
        for step in range(5):
            train_step(model, optimizer, batch_of(step, 1))
        assert told.recorded is not None
        assert saved_count(told) == 0
        assert len(told.recorded.spans) > 0
        assert told.is_following


def test_swapped_activations_alone_leave_the_state_where_it_is() -> None:
    found: Trained = trained("deep", ROOMY, sizes=DEEP)
    assert found.swapper is not None
    assert found.swapper.states.tensors == []
    assert saved_count(found.swapper) > DEEP_ACTIVATIONS
