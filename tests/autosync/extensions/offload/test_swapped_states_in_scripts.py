"""Optimizer state that waits in host memory, in scripts that evaluate, save, load, change it and
fail."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.extensions.offload.arena import Arena
from tests.autosync.extensions.offload.swapped_scripts import (
    DEEP,
    Between,
    evaluates,
    follows,
    infers,
    loads,
    nothing,
    trained_on,
    with_script,
)
from tests.autosync.extensions.offload.swapped_training import (
    DEEP_BATCH,
    ROOMY,
    batch_of,
    least_bytes,
    make,
    same,
    swapping,
    train_step,
    trained,
)


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
