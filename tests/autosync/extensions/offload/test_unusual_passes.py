"""Steps that are more than a forward, a backward pass and an update, with activations that wait in
host memory, or optimizer state too: the same training to the bit."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import HostSwapper
from autosync.extensions.offload.schedule import least_budget_bytes
from tests.autosync.extensions.offload.swapped_training import ROOMY, batch_of, make, same, swapping
from tests.long_parameters import long_after

Step = Callable[[nn.Module, torch.optim.Optimizer, int], None]


def by_step(
    step: Step, budget: int | None, with_state: bool, name: str = "attention"
) -> tuple[list[Tensor], HostSwapper | None]:
    model, optimizer = make(name)
    with Arena(ROOMY):
        swapper = swapping(model, budget, optimizer, with_state)
        torch.manual_seed(11)
        for number in range(6):
            optimizer.zero_grad()
            step(model, optimizer, number)
    return [p.detach().clone() for p in model.parameters()], swapper


def two_forwards(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    both = model(batch_of(step)) * model(batch_of(step + 10))
    both.square().mean().backward()
    optimizer.step()


def two_backwards(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    loss = model(batch_of(step)).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()


def gradients_of_gradients(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    batch = batch_of(step).requires_grad_()
    (slope,) = torch.autograd.grad(model(batch).sum(), batch, create_graph=True)
    slope.square().mean().backward()
    optimizer.step()


def forward_alone(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Nobody asks for the gradient of one."""
    model(batch_of(step + 50))
    two_forwards(model, optimizer, step)


def forward_fails(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step % 2:
        with pytest.raises(RuntimeError, match="shape"):
            model(torch.zeros(3, 5))
    two_forwards(model, optimizer, step)


def forward_is_interrupted(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """By Ctrl-C, behind which torch calls no hook of the model; in a notebook one trains on."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if step % 2:
        handle = [*model.children()][-1].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(batch_of(step + 40))
        handle.remove()
    two_forwards(model, optimizer, step)


def calls_itself(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Within its own forward pass."""
    inner: list[Tensor] = []

    def again(*_: object) -> None:
        handle.remove()
        inner.append(model(batch_of(step + 10)))

    handle = [*model.children()][-1].register_forward_pre_hook(again)
    (model(batch_of(step)) * inner[0]).square().mean().backward()
    optimizer.step()


def backward_fails(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step % 2:
        batch = batch_of(step).requires_grad_()
        loss = model(batch).square().mean()

        def fail(gradient: Tensor) -> None:
            raise ArithmeticError("no gradient today")

        batch.register_hook(fail)
        with pytest.raises(ArithmeticError, match="no gradient today"):
            loss.backward()
        optimizer.zero_grad()
    two_forwards(model, optimizer, step)


def step_is_left_out(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """As by a GradScaler."""
    model(batch_of(step)).square().mean().backward()
    if step % 3 != 1:
        optimizer.step()


def infers_midway(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A part of the model, and all of it, between a forward pass and its backward pass."""
    loss = model(batch_of(step)).square().mean()
    with torch.inference_mode():
        next(model.children())(batch_of(step + 20))
        if step % 2:
            model(batch_of(step + 30))
    loss.backward()
    optimizer.step()


def part_before_the_whole(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Of two micro-batches: one backward pass for what both have saved."""
    for number in (2 * step, 2 * step + 1):
        batch = batch_of(number).requires_grad_()  # so that the part needs its weights again
        first = next(model.children())(batch)
        second = model(batch_of(number + 20))
        (first.square().mean() + second.square().mean()).backward()
    optimizer.step()


STEPS = [
    two_forwards,
    two_backwards,
    gradients_of_gradients,
    forward_alone,
    forward_fails,
    forward_is_interrupted,
    calls_itself,
    backward_fails,
    step_is_left_out,
    infers_midway,
    part_before_the_whole,
]


def in_two_budgets(step: Step, with_state: bool, name: str = "attention") -> HostSwapper | None:
    """To the bit in a roomy budget and in one that is hardly enough, whose swapper it returns."""
    plain, _ = by_step(step, None, with_state, name)
    first, roomy = by_step(step, ROOMY, with_state, name)
    assert same(first, plain)
    assert roomy is not None
    assert roomy.recorded is not None
    budget = least_budget_bytes(roomy.recorded.moments) * 6 // 5
    tight, swapper = by_step(step, budget, with_state, name)
    assert same(tight, plain)
    return swapper


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("with_state", long_after(1, [True, False]))
def test_passes_of_other_kinds_train_to_the_bit(step: Step, with_state: bool) -> None:
    swapper = in_two_budgets(step, with_state)
    assert swapper is not None
    assert swapper.schedule is not None
    assert not swapper._entered, "what is saved elsewhere would be swapped, too"


def test_parts_of_one_storage_that_change_apart_train_to_the_bit() -> None:
    """The second one is changed in place after the first one was saved."""
    in_two_budgets(two_forwards, False, "gated")
