"""Optimizer state that waits in host memory between updates: the same training to the bit, where
neither plain training nor one whose activations alone are swapped has room; in scripts that
evaluate, save, load, change it and fail; and under several optimizers."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autosync.errors import DeviceMemoryExceeded, InvalidStrategy, NotSupported
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import HostSwapper
from autosync.extensions.offload.attachment import attach as swap_to_host
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.optimizer_states import StateTensor
from autosync.extensions.offload.schedule import least_budget_bytes
from tests.autosync.extensions.offload.swapped_training import (
    DEEP,
    DEEP_BATCH,
    ROOMY,
    SMALLEST_BYTES,
    Between,
    batch_of,
    evaluates,
    infers,
    least_bytes,
    loads,
    make,
    moves,
    same,
    saved_count,
    state_of,
    swapping,
    train_step,
    trained,
    trained_on,
    with_script,
)


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
    assert moves(swapped.swapper, "state")


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


def test_state_is_scheduled_although_activations_are_too_small_to_move() -> None:
    model, optimizer = make("deep")
    with Arena(ROOMY):
        swapper = swap_to_host(model, Offload(ROOMY, True), [optimizer], 1 << 13)
        for step in range(5):
            train_step(model, optimizer, batch_of(step, 1))
        assert swapper.recorded is not None
        assert saved_count(swapper) == 0
        assert len(swapper.recorded.spans) > 0
        assert swapper.is_following


def saves_within_inference(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    with torch.inference_mode():
        optimizer.state_dict()


def halves(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """In place, where the tensors are."""
    if step % 2:
        for state in optimizer.state.values():
            state["exp_avg"].mul_(0.5)


def replaces(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step == 4:
        for state in optimizer.state.values():
            state["exp_avg"] = torch.full_like(state["exp_avg"], 1e-3)


def forgets(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step == 4:
        optimizer.state.clear()


SCRIPTS: list[Between] = [
    evaluates,
    infers,
    saves_within_inference,
    halves,
    replaces,
    loads,
    forgets,
]


@pytest.mark.parametrize("does", SCRIPTS)
def test_a_script_may_do_what_it_likes_between_passes_and_updates(does: Between) -> None:
    plain, _ = with_script(does, None)
    roomy, least = with_script(does, ROOMY)
    assert same(roomy, plain)
    tight, _ = with_script(does, least * 21 // 20)
    assert same(tight, plain)


def test_saved_and_resumed_midway_it_goes_on_to_the_bit() -> None:
    budget = least_bytes("deep", sizes=DEEP, with_state=True)
    _, plain, _ = trained_on(range(10), None, None)
    saved, _, _ = trained_on(range(5), None, budget)
    _, resumed, swapper = trained_on(range(5, 10), saved, budget)
    assert same(resumed, plain)
    assert moves(swapper, "state")
    unswapped, _, _ = trained_on(range(5), None, None)
    _, resumed, _ = trained_on(range(5, 10), unswapped, budget)
    assert same(resumed, plain)
    _, resumed, _ = trained_on(range(5, 10), saved, None)  # taken back by plain training
    assert same(resumed, plain)


def test_a_checkpoint_that_the_script_holds_takes_none_of_the_device() -> None:
    budget = least_bytes("deep", sizes=DEEP, with_state=True)
    model, optimizer = make("deep")
    with Arena(budget) as arena:
        arena.count(model.parameters())
        swapping(model, budget, optimizer)
        held: list[dict[str, Any]] = []
        for step in range(6):
            train_step(model, optimizer, batch_of(step, DEEP_BATCH))
            held = [*held[-1:], optimizer.state_dict()]


def test_a_state_that_is_loaded_takes_the_room_of_the_one_before() -> None:
    model, optimizer = make("deep")
    with Arena(ROOMY) as arena:
        swapper = swapping(model, ROOMY, optimizer)
        assert swapper is not None
        for step in range(5):
            train_step(model, optimizer, batch_of(step, DEEP_BATCH))
        with arena.host_memory():
            saved = copy.deepcopy(optimizer.state_dict())
        train_step(model, optimizer, batch_of(5, DEEP_BATCH))
        here = swapper.states.device_bytes()
        assert here > 0  # all that the schedule keeps
        before = arena.allocated_bytes()
        arena.take_peak_bytes()
        optimizer.load_state_dict(saved)
        assert arena.take_peak_bytes() < before + here // 2


def test_taken_off_it_leaves_the_optimizer_as_it_was() -> None:
    plain = trained("deep", sizes=DEEP)
    model, optimizer = make("deep")
    with Arena(ROOMY):
        swapper = swapping(model, ROOMY, optimizer)
        assert swapper is not None
        for step in range(3):
            train_step(model, optimizer, batch_of(step, DEEP_BATCH))
        swapper.remove()
        for step in range(3, len(DEEP)):
            train_step(model, optimizer, batch_of(step, DEEP_BATCH))
    assert same([value.detach() for value in model.state_dict().values()], plain.values)
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        optimizer._optimizer_state_dict_pre_hooks,
        optimizer._optimizer_load_state_dict_pre_hooks,
        optimizer._optimizer_load_state_dict_post_hooks,
    )
    assert not any(hooks)


def test_a_step_with_a_closure_is_refused() -> None:
    model, optimizer = make("deep")

    def closure() -> Tensor:
        loss: Tensor = model(batch_of(0)).square().mean()
        loss.backward()
        return loss

    with Arena(ROOMY):
        swapping(model, ROOMY, optimizer)
        with pytest.raises(NotSupported, match="given a closure") as refused:
            optimizer.step(closure)  # type: ignore[arg-type]  # torch's annotation: a float
    assert refused.value.thing == "swap.optimizer_state"


def failing(swap: bool) -> list[Tensor]:
    """A step fails before it has updated anything; the script goes on."""
    model, optimizer = make("deep")
    budget = least_bytes("deep", sizes=DEEP, with_state=True) if swap else None
    with Arena(ROOMY):
        swapping(model, budget, optimizer)
        for step in range(8):
            if step != 5:
                train_step(model, optimizer, batch_of(step, DEEP_BATCH))
                continue

            def fail(*given: object) -> None:
                raise RuntimeError("no update today")

            handle = optimizer.register_step_pre_hook(fail)
            with pytest.raises(RuntimeError, match="no update today"):
                train_step(model, optimizer, batch_of(step, DEEP_BATCH))
            handle.remove()
    return [value.detach().clone() for value in model.parameters()]


def test_nothing_is_lost_where_an_update_fails() -> None:
    assert same(failing(swap=True), failing(swap=False))


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = make("deep")[0], make("deep")[0]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.tanh(self.first(x)) + self.second(x)
        return out


def two_optimizers(budget_bytes: int | None, together: bool) -> tuple[list[Tensor], HostSwapper]:
    """together: both step behind each backward pass, else in turn."""
    torch.manual_seed(5)
    model = Halves()
    both: list[Optimizer] = [
        torch.optim.AdamW(model.first.parameters(), lr=1e-2),
        torch.optim.SGD(model.second.parameters(), lr=1e-2, momentum=0.9),
    ]
    with Arena(ROOMY):
        swap = Offload(budget_bytes or ROOMY, optimizer_state=True)
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


@pytest.mark.parametrize("together", [True, False])
def test_several_optimizers_update_each_its_own(together: bool) -> None:
    plain, _ = two_optimizers(None, together)
    in_roomy, roomy = two_optimizers(ROOMY, together)
    assert same(in_roomy, plain)
    assert roomy.recorded is not None
    least = least_budget_bytes(roomy.recorded.moments)
    swapped, swapper = two_optimizers(least * 21 // 20, together)
    assert same(swapped, plain)
    if together:
        assert moves(swapper, "state")


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
