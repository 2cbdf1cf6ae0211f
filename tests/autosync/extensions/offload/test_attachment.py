"""Training in less memory than it needs, to the bit as with enough."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autosync.errors import BudgetTooSmall, InvalidInput, InvalidStrategy, NotSupported
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import HostSwapper
from autosync.extensions.offload.attachment import attach as swap_to_host
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.schedule import least_budget_bytes
from tests.autosync.extensions.offload.swapped_training import (
    BATCH,
    DEEP_BATCH,
    MODELS,
    ROOMY,
    SMALLEST_BYTES,
    batch_of,
    least_bytes,
    make,
    moves,
    same,
    swapping,
    train_step,
    trained,
)

SWAPPED: dict[str, dict[str, bool]] = {"activation": {}, "state": {"with_state": True}}


@pytest.mark.parametrize("name", MODELS)
def test_in_the_least_memory_it_trains_to_the_bit(name: str) -> None:
    plain, least = trained(name), least_bytes(name)
    assert least < max(plain.peak_bytes)
    swapped = trained(name, least, arena_bytes=least)
    assert same(swapped.values, plain.values)
    assert moves(swapped.swapper, "activation")


@pytest.mark.parametrize("name", MODELS)
def test_between_least_and_enough_some_stay_and_the_accounting_holds(name: str) -> None:
    plain, least = trained(name), least_bytes(name)
    budget = (least + max(plain.peak_bytes)) // 2
    swapped = trained(name, budget, arena_bytes=budget, bytes_per_second=1e9)
    assert same(swapped.values, plain.values)
    assert moves(swapped.swapper, "activation")
    assert swapped.swapper is not None
    schedule = swapped.swapper.schedule
    assert schedule is not None
    assert schedule.kept.any()
    assert swapped.peak_bytes[-1] <= schedule.peak_bytes <= budget


def test_bytes_really_leave() -> None:
    model, _ = make("blocks")
    storages: list[weakref.ref[torch.UntypedStorage]] = []

    def note(module: nn.Module, args: object, output: Tensor) -> None:
        storages.append(weakref.ref(output.untyped_storage()))

    with Arena(ROOMY) as arena:
        swap_to_host(model, Offload(ROOMY), smallest_bytes=SMALLEST_BYTES)
        begin = arena.allocated_bytes()
        model.get_submodule("0.0").register_forward_hook(note)  # whose output GELU keeps
        loss = model(batch_of(0)).square().mean()
        gc.collect()
        assert storages[0]() is None
        assert arena.allocated_bytes() - begin < 2 * 4 * BATCH * 32 * 4
        loss.backward()


@pytest.mark.parametrize(
    ("kind", "name", "parts"), [("activation", "blocks", 2), ("state", "blocks", 3)]
)
def test_micro_batches_update_after_several_passes(kind: str, name: str, parts: int) -> None:
    how: dict[str, Any] = {"sizes": (BATCH,) * 6, "parts": parts}
    plain = trained(name, **how)
    how |= SWAPPED[kind]
    least = least_bytes(name, **how)
    swapped = trained(name, least, arena_bytes=least, **how)
    assert same(swapped.values, plain.values)
    assert moves(swapped.swapper, kind)


@pytest.mark.parametrize(
    ("kind", "name", "size"), [("activation", "blocks", BATCH), ("state", "deep", DEEP_BATCH)]
)
def test_a_smaller_batch_runs_on_demand_and_the_next_follows_again(
    kind: str, name: str, size: int
) -> None:
    sizes = (*(size,) * 6, size // 4, size, size)
    plain = trained(name, sizes=sizes)
    least = least_bytes(name, sizes=(size,) * 6, **SWAPPED[kind])
    swapped = trained(name, least, least, sizes, **SWAPPED[kind])
    assert same(swapped.values, plain.values)
    assert moves(swapped.swapper, kind)


def test_batches_that_stay_smaller_are_recorded_anew() -> None:
    sizes = (BATCH, BATCH, *(BATCH // 2,) * 5)
    plain, least = trained("blocks", sizes=sizes), least_bytes("blocks")
    swapped = trained("blocks", least, arena_bytes=least, sizes=sizes)
    assert same(swapped.values, plain.values)
    assert swapped.swapper is not None
    assert swapped.swapper.deviations == 0
    recorded = swapped.swapper.recorded
    assert recorded is not None
    first = trained("blocks", ROOMY).swapper
    assert first is not None
    assert first.recorded is not None
    assert recorded.spans.size_bytes.sum() < first.recorded.spans.size_bytes.sum()


def test_host_buffers_of_sizes_that_come_no_more_are_let_go() -> None:
    """As of sentences of any length."""
    model, optimizer = make("blocks")
    sizes = []
    with Arena(ROOMY):
        swapper = swapping(model, ROOMY, optimizer, with_state=False)
        assert swapper is not None
        for step in range(12):
            train_step(model, optimizer, batch_of(step, BATCH + step))
            sizes.append(len(swapper._device.free))
    assert sizes[0] > 0
    assert max(sizes) <= 4 * sizes[0]


class ChangesInPlace(nn.Module):
    """Changes what exp has kept for its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.exp(self.layer(x))
        kept.add_(1)
        return kept


@pytest.mark.parametrize("smallest_bytes", [SMALLEST_BYTES, ROOMY])
def test_in_place_changes_of_saved_activations_are_refused(smallest_bytes: int) -> None:
    """With and without swapping it: torch itself would refuse."""
    model = ChangesInPlace()
    with Arena(ROOMY):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            model(batch_of(0)).sum().backward()
        swapper = swap_to_host(model, Offload(ROOMY), smallest_bytes=smallest_bytes)
        loss = model(batch_of(0)).sum()
        if smallest_bytes == ROOMY:
            with pytest.raises(InvalidInput, match="changed in place"):
                loss.backward()
        else:  # passes on demand copy at once: what was saved is what backward gets
            loss.backward()
            model(batch_of(0)).sum().backward()  # recorded anew: there are gradients now
            with pytest.raises(InvalidInput, match="changed in place"):
                model(batch_of(1)).sum().backward()
        swapper.remove()


def test_a_budget_that_holds_no_step_is_refused_after_the_first() -> None:
    least = least_bytes("blocks")
    with pytest.raises(BudgetTooSmall, match="does not hold a training step"):
        trained("blocks", least // 2)


def test_taken_off_it_leaves_the_model_as_it_was() -> None:
    model, optimizer = make("blocks")
    with Arena(ROOMY):
        swapper = swap_to_host(model, Offload(ROOMY), smallest_bytes=SMALLEST_BYTES)
        train_step(model, optimizer, batch_of(0))
        swapper.remove()
        train_step(model, optimizer, batch_of(1))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_forward_pass_that_fails_leaves_no_hook_behind() -> None:
    model, optimizer = make("blocks")
    with Arena(ROOMY):
        swap_to_host(model, Offload(ROOMY), smallest_bytes=SMALLEST_BYTES)
        with pytest.raises(RuntimeError, match="shape"):
            model(torch.zeros(3, 5))
        weight = torch.ones(BATCH, 32, requires_grad=True)
        product = weight * weight
        assert product.grad_fn is not None
        assert product.grad_fn._saved_self is weight  # type: ignore[attr-defined]  # of this node
        train_step(model, optimizer, batch_of(1))


def test_host_memory_without_an_arena_is_refused() -> None:
    model, _ = make("blocks")
    with pytest.raises(NotSupported, match="on cpu") as refused:
        swap_to_host(model, Offload(ROOMY))
    assert "Arena" in refused.value.remedy


def test_state_without_an_optimizer_and_values_are_refused() -> None:
    model, _ = make("blocks")
    with Arena(ROOMY), pytest.raises(InvalidInput, match="no optimizer was given") as refused:
        swap_to_host(model, Offload(ROOMY, optimizer_state=True))
    assert refused.value.thing == "swap.optimizer_state"
    with Arena(ROOMY), pytest.raises(InvalidStrategy, match="any more") as earlier:
        swap_to_host(model, Offload(ROOMY, values=True))
    assert "Leave values out" in earlier.value.remedy


def test_the_record_tells_moments_and_rates() -> None:
    found = trained("blocks", ROOMY, bytes_per_second=1e8).swapper
    assert found is not None
    recorded = found.recorded
    assert recorded is not None
    assert len(recorded.moments.seconds) == len(recorded.accesses) + 1
    assert (recorded.moments.seconds >= 0).all()
    assert 0 < recorded.bytes_per_second <= 1e8
    saved = [access for access in recorded.accesses if access[0] == "save"]
    assert np.isin(recorded.spans.tensor, [position for _, position, _ in saved]).all()


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


@pytest.mark.parametrize("how", [{"with_state": False}, {"with_state": True}])
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


@pytest.mark.parametrize("how", [{"with_state": False}, {"with_state": True}])
def test_a_pass_that_outgrows_the_headroom_is_recorded_again(how: dict[str, Any]) -> None:
    budget = least_bytes("deep", sizes=SIZES, **how) * 21 // 20
    with Arena(ROOMY):
        model, optimizer, swapper = warmed_up(budget, how)
        assert swapper.recorded is not None
        before, least = swapper.schedule, least_budget_bytes(swapper.recorded.moments)
        held = torch.zeros(least // 50, dtype=torch.uint8)
        for step in range(3):
            train_step(model, optimizer, batch_of(step, DEEP_BATCH))
        assert swapper.is_following
        assert swapper.schedule is not before
        assert least_budget_bytes(swapper.recorded.moments) >= least + held.numel()


def test_tensors_held_only_when_a_pass_begins_do_not_refuse_the_budget() -> None:
    budget = least_bytes("deep", sizes=SIZES)
    with Arena(ROOMY):
        model, optimizer, swapper = warmed_up(budget, {"with_state": False})
        held = [torch.zeros(256)]
        model.register_forward_pre_hook(lambda module, args: held.clear())  # behind the swapper's
        for step in range(3):
            train_step(model, optimizer, batch_of(step, DEEP_BATCH))
        assert swapper.is_following
