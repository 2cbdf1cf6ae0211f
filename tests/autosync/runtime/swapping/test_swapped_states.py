"""Optimizer state that waits in host memory between updates: the same training to the bit, in
memory that holds neither plain training nor one whose activations alone are swapped."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autosync.errors import DeviceMemoryExceeded, InvalidStrategy, NotSupported
from autosync.runtime.swapping.arena import Arena
from autosync.runtime.swapping.host_swapper import HostSwapper, swap_to_host
from autosync.runtime.swapping.scheduled_pass import ScheduledPass
from autosync.runtime.swapping.swapped_states import StateTensor
from autosync.swap_schedule.scheduling import least_budget_bytes
from autosync.swap_schedule.swap_choice import Swap
from tests.autosync.runtime.swapping.swapped_training import (
    BATCH,
    DEEP_BATCH,
    MODELS,
    ROOMY,
    SMALLEST_BYTES,
    Trained,
    batch_of,
    least_bytes,
    make,
    same,
    swapping,
    train_step,
    trained,
)

DEEP = (DEEP_BATCH,) * 6
DEEP_ACTIVATIONS = 10
"""Of the deep model at least so many are saved."""


def follows(swapper: HostSwapper | None) -> bool:
    """The passes went by a schedule that moves state, and the next one, just begun, will."""
    assert swapper is not None
    recorded, schedule = swapper.recorded, swapper.schedule
    assert recorded is not None
    assert schedule is not None
    moved = schedule.spans.tensor[~schedule.kept] >= recorded.saved
    going_on = isinstance(swapper._current, ScheduledPass) and swapper.deviations == 0
    return going_on and bool(moved.any())


def state_of(optimizer: Optimizer) -> list[Tensor]:
    return [
        value.detach().clone()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]


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


def test_micro_batches_update_after_several_passes() -> None:
    sizes = (BATCH,) * 6
    plain = trained("blocks", sizes=sizes, parts=3)
    least = least_bytes("blocks", sizes=sizes, parts=3, with_state=True)
    swapped = trained("blocks", least, arena_bytes=least, sizes=sizes, parts=3, with_state=True)
    assert same(swapped.values, plain.values)
    assert follows(swapped.swapper)


def test_a_smaller_batch_runs_on_demand_and_the_next_follows_again() -> None:
    sizes = (*DEEP, DEEP_BATCH // 4, DEEP_BATCH, DEEP_BATCH)
    plain = trained("deep", sizes=sizes)
    least = least_bytes("deep", sizes=DEEP, with_state=True)
    swapped = trained("deep", least, arena_bytes=least, sizes=sizes, with_state=True)
    assert same(swapped.values, plain.values)
    assert follows(swapped.swapper)


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


def loads(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step in (2, 4):
        saved = io.BytesIO()
        torch.save(optimizer.state_dict(), saved)
        saved.seek(0)
        optimizer.load_state_dict(torch.load(saved))


def forgets(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step == 4:
        optimizer.state.clear()


SCRIPTS: list[Between] = [
    nothing,
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
    for between, behind in ((does, nothing), (nothing, does)):
        plain, _ = with_script(between, behind, None)
        roomy, least = with_script(between, behind, ROOMY)
        assert same(roomy, plain)
        tight, _ = with_script(between, behind, least * 21 // 20)
        assert same(tight, plain)


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


def test_saved_and_resumed_midway_it_goes_on_to_the_bit() -> None:
    budget = least_bytes("deep", sizes=DEEP, with_state=True)
    _, plain, _ = trained_on(range(10), None, None)
    saved, _, _ = trained_on(range(5), None, budget)
    _, resumed, swapper = trained_on(range(5, 10), saved, budget)
    assert same(resumed, plain)
    assert follows(swapper)
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
        swap = Swap(budget_bytes or ROOMY, optimizer_state=True, values=with_values)
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
        swapper = swap_to_host(model, Swap(ROOMY, True), [seldom, often], SMALLEST_BYTES)
        for step in range(10):
            model.zero_grad()
            model(batch_of(step, DEEP_BATCH)).square().mean().backward()
            if step % 2:
                seldom.step()
            often.step()
            if not step % 2:  # both have not stepped: the next forward pass ends this one
                last = swapper._current
                followed.append(isinstance(last, ScheduledPass) and not last.deviated)
    assert all(followed[2:])


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


def test_plain_sgd_has_no_state_to_move() -> None:
    model, _ = make("blocks")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Arena(ROOMY):
        swapper = swapping(model, ROOMY, optimizer)
        assert swapper is not None
        for step in range(4):
            train_step(model, optimizer, batch_of(step))
    assert swapper.states.tensors == []
    assert isinstance(swapper._current, ScheduledPass)


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
        told = swap_to_host(model, Swap(ROOMY, True), [optimizer], 1 << 13)
        for step in range(5):
            train_step(model, optimizer, batch_of(step, 1))
        assert told.recorded is not None
        assert told.recorded.saved == 0
        assert len(told.recorded.spans) > 0
        assert isinstance(told._current, ScheduledPass)


def test_swapped_activations_alone_leave_the_state_where_it_is() -> None:
    found: Trained = trained("deep", ROOMY, sizes=DEEP)
    assert found.swapper is not None
    assert found.swapper.states.tensors == []
    assert found.swapper.recorded is not None
    assert found.swapper.recorded.saved > DEEP_ACTIVATIONS
