"""Gradients between backward and step(): exact for whoever reads them, or refused by name."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from threading import Condition, RLock, Thread
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn

from autosync.runtime.device.streams import Streams, Tracked
from autosync.runtime.execution.engine import Engine
from autosync.runtime.execution.pending import PendingGradient
from autosync.runtime.execution.script_gradients import ScriptGradients
from autosync.runtime.layout.records import VariableRecord
from tests.autosync.runtime.cases import (
    Case,
    attached,
    gap,
    loss_of,
    make_model,
    make_optimizer,
    reference_gradients,
    set_reference_gradients,
    train_reference,
    worst_difference,
)
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.parts import gradient_of, linear, total_of
from tests.autosync.runtime.place import HERE
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP

DEFERRED = (
    Case(schedule=OVERLAP, groups=3),
    Case(partition="even", schedule=OVERLAP, groups=3),
    Case(method="tree", schedule=OVERLAP, groups=3),
    Case(method="rs", partition="uneven", schedule=OVERLAP, groups=3),
    Case(method="rs", schedule=replace(OVERLAP, gather="when_idle"), groups=3),
    Case(method="byteps", partition="even", schedule=OVERLAP, groups=3),
    Case(method="byteps", schedule=replace(OVERLAP, gather="when_idle"), groups=3),
)
PARTED = (
    Case(method="zero", schedule=OVERLAP),
    Case(method="ps"),
    Case(method="mixed", partition="even", groups=4, schedule=OVERLAP),
)
LIMIT = 0.05

Change = Callable[[torch.optim.Optimizer, nn.Module], None]


def backward_late(model: nn.Module, iteration: int, rank: int) -> None:
    """Rank 1 sends its gradients when rank 0 has long returned from backward."""
    loss = loss_of(model, iteration, rank)
    if rank == 1:
        time.sleep(0.02)
    loss.backward()


def changed(rank: int, world: int, cases: tuple[Case, ...], change: Change) -> list[float]:
    """The difference from single-process training in which the script does the same."""
    return [_changed(rank, world, case, change) for case in cases]


def _changed(rank: int, world: int, case: Case, change: Change) -> float:
    model, optimizer, attachment = attached(case, world)
    for iteration in range(case.iterations):
        optimizer.zero_grad()
        backward_late(model, iteration, rank)
        change(optimizer, model)
        optimizer.step()
    attachment.detach()
    return worst_difference(model, changed_alone(case, world, change))


def changed_alone(case: Case, world: int, change: Change) -> nn.Module:
    model = make_model(case.model)
    optimizer = make_optimizer(case.optimizer, model)
    for iteration in range(case.iterations):
        set_reference_gradients(model, iteration, (1.0 / world,) * world)
        change(optimizer, model)
        optimizer.step()
    return model


def clip_norm(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), LIMIT)


def clip_norm_at_once(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), LIMIT, foreach=True)


def clip_value(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 0.01)


def clip_by_hand(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    norm = total_of(gradient_of(p).double().pow(2).sum() for p in model.parameters()).sqrt()
    for p in model.parameters():
        p.grad = gradient_of(p) * (LIMIT / max(float(norm), LIMIT))


def replace_unread(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    for number, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, 0.5) if number % 2 else None


def clip_one(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(next(model.parameters()), LIMIT)


@pytest.mark.parametrize(
    ("change", "cases"),
    [
        (clip_norm, DEFERRED),
        (clip_norm_at_once, DEFERRED[::3]),
        (clip_value, DEFERRED[1::3]),
        (clip_by_hand, DEFERRED[2::3]),
        (replace_unread, DEFERRED),
        (clip_one, DEFERRED[::2]),
    ],
)
def test_deferred_gradients_are_the_average_for_whoever_reads_them(
    pair: Ranks, change: Change, cases: tuple[Case, ...]
) -> None:
    for differences in pair.run(changed, cases, change):
        assert max(differences) < 3e-6, dict(zip(cases, differences, strict=True))


class LandedOnly(Streams):
    """A device on which nothing is done when the host has completed it. behind: what readers have
    stayed behind since backward returned."""

    asynchronous = True

    def __init__(self) -> None:
        super().__init__()
        self.behind: list[object] = []

    def wait_last_events(self, tracked: Iterable[Tracked]) -> None:
        self.behind.extend(tracked)


def landed(rank: int, world: int) -> list[str]:
    """Every sum is on the host before backward returns, as it is on NCCL."""
    wrong = []
    for case in DEFERRED:
        HERE.streams = streams = LandedOnly()
        model, optimizer, attachment = attached(case, world)
        _land_before_showing(attachment.engine)
        for iteration in range(case.iterations):
            optimizer.zero_grad()
            loss_of(model, iteration, rank).backward()
            streams.behind.clear()
            for variable in attachment.engine.variables:
                float(gradient_of(variable.parameter).sum())
                if variable not in streams.behind:
                    wrong.append(f"{case}: {variable.name} was read too early")
            optimizer.step()
        attachment.detach()
        HERE.streams = None
    return wrong


def _land_before_showing(engine: Engine) -> None:
    make_pending = engine.gradients.make_pending

    def late(completed: bool = False) -> None:
        engine.monitor.wait(lambda: not any(variable.missing_sums for variable in engine.variables))
        make_pending(completed)

    engine.gradients.__dict__["make_pending"] = late


def test_a_sum_that_the_host_has_landed_is_waited_for_on_the_device(pair: Ranks) -> None:
    assert pair.run(landed) == [[], []]


READINGS: dict[str, Callable[[nn.Module], object]] = {
    "clip by norm": lambda model: nn.utils.clip_grad_norm_(model.parameters(), LIMIT),
    "clip by value": lambda model: nn.utils.clip_grad_value_(model.parameters(), LIMIT),
    "a norm": lambda model: [gradient_of(p).norm() for p in model.parameters()],
    "a value": lambda model: [gradient_of(p).view(-1)[0].item() for p in model.parameters()],
    "its data": lambda model: [gradient_of(p).data for p in model.parameters()],
    "numpy": lambda model: [gradient_of(p).numpy() for p in model.parameters()],
    "in place": lambda model: [gradient_of(p).mul_(2.0) for p in model.parameters()],
}


def readings(rank: int, world: int) -> list[str]:
    """Every reading is refused, whatever it reads first, and does no harm: training goes on."""
    messages = []
    for case in PARTED:
        model, optimizer, attachment = attached(case, world)
        for iteration in range(case.iterations):
            optimizer.zero_grad()
            backward_late(model, iteration, rank)
            for p in model.parameters():
                assert gradient_of(p).shape == p.shape
                assert gradient_of(p).dtype == p.dtype
            for name, read in READINGS.items():
                messages.append(refusal(partial(read, model)) or f"{name} was not refused")
            optimizer.step()
        attachment.detach()
        assert worst_difference(model, train_reference(case, world)) < 3e-6, case
    return messages


def test_gradients_that_no_rank_holds_are_refused(pair: Ranks) -> None:
    for messages in pair.run(readings):
        assert len(messages) == len(PARTED) * len(READINGS) * Case().iterations
        for message in messages:
            assert "was read between backward and step()" in message
            assert "max_grad_norm=" in message


def replaced(rank: int, world: int) -> list[str]:
    """The script tries again, and then puts back what it had replaced."""
    messages = []
    for case in PARTED:
        model, optimizer, attachment = attached(case, world)
        loss_of(model, 0, rank).backward()
        before = [p.grad for p in model.parameters()]
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        messages += [refusal(optimizer.step) for _ in range(2)]
        for p, gradient in zip(model.parameters(), before, strict=True):
            p.grad = gradient
        optimizer.step()
        attachment.detach()
        alone = train_reference(replace(case, iterations=1), world)
        assert worst_difference(model, alone) < 3e-6, case
    return messages


def test_replacing_what_no_rank_holds_is_refused(pair: Ranks) -> None:
    for messages in pair.run(replaced):
        assert ["was replaced before step()" in message for message in messages] == [True] * 6


def norms(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    return [gradient.norm() for gradient in gradients]


def kept(rank: int, world: int) -> tuple[list[float], list[list[str]]]:
    """Read for the first time behind step(), and again behind the next backward pass."""
    found, messages = [], []
    for case in (*DEFERRED, *PARTED):
        model, optimizer, attachment = attached(case, world)
        wanted = reference_gradients(make_model(case.model), 0, (1.0 / world,) * world)
        backward_late(model, 0, rank)
        held = [gradient_of(p) for p in model.parameters()]
        optimizer.step()
        said = []
        if case in DEFERRED:
            for one, mean in zip(held, wanted, strict=True):
                assert mean is not None
                found.append(gap(one, mean))
        else:
            said.append(refusal(partial(norms, held)))
        loss_of(model, 1, rank).backward()
        said.append(refusal(partial(norms, held)))
        optimizer.step()
        attachment.detach()
        messages.append(said)
    return found, messages


def test_gradients_that_a_script_keeps_are_the_average_or_refused(pair: Ranks) -> None:
    for found, messages in pair.run(kept):
        assert max(found) < 3e-6
        for (said,) in messages[: len(DEFERRED)]:
            assert "that the script has kept" in said
        for first, second in messages[len(DEFERRED) :]:
            assert "was read behind its step(), but no rank holds all of it" in first
            assert second


def fused(model: nn.Module) -> torch.optim.Optimizer:
    """Scales and checks inside of its step: a GradScaler leaves that to it."""
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def plain(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def scaled(
    rank: int, world: int, make: Callable[[nn.Module], torch.optim.Optimizer], cleared: str
) -> list[float]:
    """Rank 1 alone overflows in iteration 1, and in one variable, which one rank may own: all
    skip it."""
    found = []
    for case in (*DEFERRED, *PARTED, Case()):
        model = make_model("mlp")
        optimizer = make(model)
        _, _, attachment = attached(case, world, model=model, optimizer=optimizer)
        scaler = torch.amp.GradScaler(HERE.device.type, init_scale=1024.0)
        for iteration in range(case.iterations):
            overflow = linear(model, 0).bias.register_hook(
                lambda g, worst=iteration == 1 and rank == 1: g * torch.inf if worst else g
            )
            scaler.scale(loss_of(model, iteration, rank)).backward()
            overflow.remove()
            scaler.step(optimizer)
            scaler.update()
            (model if cleared == "model" else optimizer).zero_grad()
        attachment.detach()
        assert scaler.get_scale() == 512.0
        alone = make_model("mlp")
        single = make(alone)
        for iteration in (i for i in range(case.iterations) if i != 1):
            set_reference_gradients(alone, iteration, (1.0 / world,) * world)
            single.step()
        found.append(worst_difference(model, alone))
    return found


@pytest.mark.parametrize(("make", "cleared"), [(fused, "optimizer"), (plain, "model")])
def test_scalers_see_the_sums(
    pair: Ranks, make: Callable[[nn.Module], torch.optim.Optimizer], cleared: str
) -> None:
    for differences in pair.run(scaled, make, cleared):
        assert max(differences) < 3e-6, differences


def unscaled_then_clipped(rank: int, world: int) -> tuple[list[float], list[str]]:
    """The usual recipe: exact where gradients are the average, refused where none holds them."""
    found, messages = [], []
    for case in (*DEFERRED, *PARTED):
        model, optimizer, attachment = attached(case, world)
        scaler = torch.amp.GradScaler(HERE.device.type, init_scale=1024.0)
        for iteration in range(case.iterations):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, iteration, rank)).backward()
            scaler.unscale_(optimizer)
            if said := refusal(partial(clip_norm, optimizer, model)):
                messages.append(said)
            scaler.step(optimizer)
            scaler.update()
        attachment.detach()
        clips = case in DEFERRED
        alone = changed_alone(case, world, clip_norm) if clips else train_reference(case, world)
        found.append(worst_difference(model, alone))
    return found, messages


def test_clipping_behind_a_scaler(pair: Ranks) -> None:
    for differences, messages in pair.run(unscaled_then_clipped):
        assert max(differences) < 3e-6, differences
        assert len(messages) == len(PARTED) * Case().iterations


def unscaled_by_hand(rank: int, world: int) -> list[float]:
    """Another scaler than torch's: the operation counts, not who calls it."""
    found = []
    for case in (*DEFERRED, *PARTED):
        model, optimizer, attachment = attached(case, world)
        for iteration in range(case.iterations):
            optimizer.zero_grad()
            (loss_of(model, iteration, rank) * 64.0).backward()
            gradients = [gradient_of(p) for p in model.parameters()]
            infinite = torch.zeros(1, device=HERE.device)
            torch._amp_foreach_non_finite_check_and_unscale_(
                gradients, infinite, torch.tensor([1 / 64.0], device=HERE.device)
            )
            assert not infinite
            optimizer.step()
        attachment.detach()
        found.append(worst_difference(model, train_reference(case, world)))
    return found


def test_any_scaler_is_served(pair: Ranks) -> None:
    for differences in pair.run(unscaled_by_hand):
        assert max(differences) < 3e-6, differences


class LateShown:
    """A parameter whose sum another thread shows right after its gradient is read, as soon as that
    thread gets the engine's lock."""

    def __init__(self, lock: Condition, target: torch.Tensor):
        self._lock, self._target = lock, target
        self._grad: torch.Tensor | None = None
        self.thread: Thread | None = None

    @property
    def grad(self) -> torch.Tensor | None:
        read = self._grad
        if self.thread is None:
            self.thread = Thread(target=self._show)
            self.thread.start()
            self.thread.join(0.2)  # without the lock it would be shown now
        return read

    @grad.setter
    def grad(self, given: torch.Tensor | None) -> None:
        self._grad = given

    def _show(self) -> None:
        with self._lock:
            self._grad = self._target


@pytest.mark.parametrize("call", ["step", "make_plain"])
def test_a_sparse_sum_that_completes_meanwhile_is_not_overwritten(call: str) -> None:
    lock, local, target = Condition(RLock()), torch.zeros(2), torch.ones(2)
    parameter = LateShown(lock, target)
    variable = SimpleNamespace(
        parameter=parameter, target=target, whole=True, deferred=True, held_by_some=False
    )
    engine = SimpleNamespace(
        variables=[variable],
        monitor=SimpleNamespace(condition=lock, wait=lambda condition: None),
        streams=SimpleNamespace(keep_for_completion=lambda tensor: None),
        iteration=SimpleNamespace(number=0),
    )
    gradients = ScriptGradients(cast(Engine, engine), lambda tensor, wait: None, None)
    parameter._grad = PendingGradient.around(gradients, cast(VariableRecord, variable), local)
    if call == "step":
        gradients.take_for_step(gradients.replaced())
    else:
        gradients.make_plain()
    assert parameter.thread is not None
    parameter.thread.join()
    assert parameter._grad is target
