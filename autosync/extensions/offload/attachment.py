"""Swaps a model's activations and, where asked, the state of its optimizers: forward passes save
here, backward passes and updates ask for what they need.

The first pass runs on demand and is recorded; from then on passes follow the schedule that was made
of the record. A pass that does otherwise (the last batch of an epoch, say) ends on demand. Where
several in a row do, or more is on the device than before, the next one is recorded anew.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.offload.device import SwapDevice, check_swappable, swap_device_of
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.optimizer_states import SwappedStates
from autosync.extensions.offload.pass_record import RecordedPass
from autosync.extensions.offload.schedule import (
    SMALLEST_BYTES,
    SwapSchedule,
    least_budget_bytes,
    make_schedule,
)
from autosync.extensions.offload.swapped_pass import (
    Packed,
    PassSchedule,
    SwappedPass,
    pass_schedule,
)
from autosync.extensions.offload.swapped_tensors import ordinary_tensors
from autosync.extensions.offload.verification import check_values_stay
from autosync.runtime.hooks.torch_compile import compiled_from

log = logging.getLogger("autosync")

MOST_DEVIATIONS = 2
"""Passes in a row that do not do what the recorded one did, before one is recorded anew."""
HEADROOM = 0.01
"""Of what the fullest moment holds: a schedule counts on so much more, as far as the budget has
room for it. A list of losses grows by 4 bytes a pass. What grows by more (the optimizer's first
step makes its state, say) is recorded anew."""


def check(model: nn.Module, swap: Offload, called: nn.Module) -> None:
    """Raises NotSupported as `device.check_swappable`."""
    check_swappable(model, called)


def attach(
    model: nn.Module,
    swap: Offload,
    optimizers: Sequence[Optimizer] = (),
    smallest_bytes: int = SMALLEST_BYTES,
) -> "HostSwapper":
    """Train within a budget of device memory: what has no room waits in the host's.

    optimizers: all of the model; used where their state is swapped. smallest_bytes: of a tensor
    that is swapped; smaller ones stay. `remove()` takes it off.

    A schedule that does not fit is refused by BudgetTooSmall where the second pass begins.

    Raises:
        InvalidInput: optimizer state is to be swapped, and no optimizer is given.
        InvalidStrategy: values of parameters are to be swapped, as earlier versions could.
        NotSupported: see `device.check_swappable`.
        DeviceMemoryExceeded: what is there already is more than the arena holds.
    """
    check_values_stay(swap)
    if swap.optimizer_state and not optimizers:
        raise InvalidInput(
            "optimizer_state is swapped between updates, and no optimizer was given that makes "
            "them.",
            thing="swap.optimizer_state",
            value=True,
            remedy="Give all optimizers of the model, or leave optimizer_state out.",
        )
    check_swappable(compiled_from(model), model)
    device = swap_device_of(model)
    device.memory.count([*model.parameters(), *model.buffers()])
    watched = tuple(optimizers) if swap.optimizer_state else ()
    swapper = HostSwapper(model, swap.budget_bytes, watched, device, smallest_bytes)
    try:
        swapper.install()
    except Exception:  # the host may have no room for the state
        swapper.remove(keep_state=False)
        raise
    return swapper


class HostSwapper:
    """optimizers: whose state is swapped; a pass then begins behind the last update of the one
    before. Else, where none is given, with its forward pass.

    recorded: the pass that the schedule is made of. schedule: that passes follow; None until the
    first one has been recorded. deviations: passes in a row that did not follow it.
    """

    def __init__(
        self,
        model: nn.Module,
        budget_bytes: int,
        optimizers: tuple[Optimizer, ...],
        device: SwapDevice,
        smallest_bytes: int,
    ) -> None:
        self.states = SwappedStates(optimizers, device, smallest_bytes)
        self.recorded: RecordedPass | None = None
        self.schedule: SwapSchedule | None = None
        self.deviations = 0
        self._model = model
        self._budget_bytes = budget_bytes
        self._optimizers = optimizers
        self._device = device
        self._smallest_bytes = smallest_bytes
        self._of_pass: PassSchedule | None = None  # None: the next pass is recorded
        self._most_bytes = 0
        self._current: SwappedPass | None = None
        self._stepped: set[int] = set()
        self._entered: list[tuple[FrameType, saved_tensors_hooks | None]] = []
        self._handles: list[RemovableHandle] = []

    @property
    def is_following(self) -> bool:
        """Whether the pass that goes on, or has just ended, does what the schedule says."""
        return self._current is not None and self._current.followed is not None

    def install(self) -> None:
        model = self._model
        self._handles += [
            model.register_forward_pre_hook(_hook(self._before_forward)),
            model.register_forward_hook(_hook(self._after_forward), always_call=True),
        ]
        for optimizer in self._optimizers:
            self._handles += [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
                optimizer.register_state_dict_pre_hook(self._put_state_away),
                optimizer.register_load_state_dict_pre_hook(self._put_state_away),
                optimizer.register_load_state_dict_post_hook(self._put_state_away),
            ]
        self._put_state_away()

    def remove(self, keep_state: bool = True) -> None:
        """Saved tensors and the optimizers' state stay on the device from now on.

        keep_state: False leaves in host memory what is there, for whoever puts another state back.
        """
        while self._entered:  # of a forward pass that an interrupt has ended
            self._leave_forward()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if keep_state:
            with ordinary_tensors():
                self.states.refresh()
                for number in range(len(self._optimizers)):
                    self.states.bring(number)

    def _before_forward(self, module: nn.Module, *given: Any) -> None:
        if module is not self._model:  # a copy of the model
            return
        self._leave_interrupted()
        hooks = None
        if torch.is_grad_enabled():
            if not self._entered:
                self._begin_pass()
            hooks = saved_tensors_hooks(self._pack, _unpack)
            hooks.__enter__()
        elif not self._entered:
            self._before_evaluation()
        self._entered.append((sys._getframe(2), hooks))  # of the call of the model

    def _after_forward(self, module: nn.Module, *given: Any) -> None:
        if module is self._model and self._entered:
            self._leave_forward()

    def _leave_forward(self) -> None:
        _, hooks = self._entered.pop()
        if hooks is not None:
            hooks.__exit__()

    def _leave_interrupted(self) -> None:
        """torch calls no hook behind a forward pass that Ctrl-C has ended."""
        while self._entered:
            try:
                self._entered[-1][0].clear()
            except RuntimeError:  # it still runs: the model calls itself
                return
            self._leave_forward()

    def _pack(self, tensor: Tensor) -> Packed:
        assert self._current is not None
        return self._current.pack(tensor)

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Any) -> None:
        """args: the optimizer and what `step` was given."""
        if any(callable(given) for given in (*args[1:], *kwargs.values())):
            raise NotSupported(
                f"{type(optimizer).__name__}.step() was given a closure, which runs forward and "
                "backward passes within the update: its state is needed then, and cannot be "
                "elsewhere.",
                thing="swap.optimizer_state",
                value=type(optimizer).__name__,
                remedy="Call step() without one behind backward(), or leave optimizer_state out.",
            )
        self.states.refresh()
        number = self._optimizers.index(optimizer)
        if self._current is None:
            self.states.bring(number)
        else:
            self._current.update(number)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self._optimizers):
            self._begin_pass()

    def _put_state_away(self, *given: object) -> None:
        """What `state_dict` returns refers to it: no memory of the device, which a schedule counts
        on. What `load_state_dict` brings takes the room of what was there."""
        with ordinary_tensors():
            self.states.refresh()
            self.states.put_away()

    def _before_evaluation(self) -> None:
        """It is no part of a pass, and has all the room there is."""
        if not self._optimizers:
            self._end_pass()
        elif self._current is not None and self._current.is_fresh:
            self._current = None
            self._put_state_away()

    def _begin_pass(self) -> None:
        """Of several forward passes before one backward pass, the first begins it, where the last
        update has not."""
        last = self._current
        if last is not None and not last.is_under_way and (last.is_held or last.is_fresh):
            return
        self._end_pass()
        self._stepped.clear()
        self.states.refresh()
        # What has come to the device since the recorded pass began stays there: gradients that add
        # up over passes, a list of losses, the optimizer's state where that is not swapped.
        held = self._device.memory.allocated_bytes() - self.states.device_bytes()
        if self.recorded is not None and (
            held > self._most_bytes or self.states.sizes() != self.recorded.states
        ):
            self._of_pass = None
        if self._of_pass is None:
            self._device.free.clear()  # from here on other sizes may wait on the host
        stay = (*self._model.parameters(), *self._model.buffers())
        unswapped = {tensor.untyped_storage()._cdata for tensor in stay}
        self._current = SwappedPass(
            self._device, self.states, self._smallest_bytes, unswapped, self._of_pass
        )

    def _end_pass(self) -> None:
        last = self._current
        if last is None or not last.is_under_way:
            return
        self._current = None
        self.deviations = self.deviations + 1 if last.deviated else 0
        if self.deviations >= MOST_DEVIATIONS:
            self._of_pass = None
        if last.record is not None:
            recorded = last.record.finished()
            if last.has_updated or not self._optimizers:  # else the next one may update
                self._adopt(recorded)

    def _adopt(self, recorded: RecordedPass) -> None:
        """Raises BudgetTooSmall where the budget does not hold it."""
        least = least_budget_bytes(recorded.moments)
        headroom = max(0, min(int(HEADROOM * least), self._budget_bytes - least))
        moments = replace(recorded.moments, base_bytes=recorded.moments.base_bytes + headroom)
        rate = recorded.bytes_per_second
        schedule = make_schedule(recorded.spans, moments, self._budget_bytes, rate)
        self.recorded, self.schedule = recorded, schedule
        self._of_pass = pass_schedule(recorded, schedule)
        self._most_bytes = recorded.begin_bytes + headroom
        log.info(
            "swapping: %d of %d idle tensors stay, %.1f MB a pass travel, at most %.1f MB of "
            "the device are held.",
            int(schedule.kept.sum()),
            len(schedule.kept),
            schedule.moved_bytes / 1e6,
            schedule.peak_bytes / 1e6,
        )


def _hook(method: Callable[..., None]) -> Callable[..., None]:
    """Modules are copied with their hooks: with a method its swapper would be copied, too."""

    def hook(*given: Any) -> None:
        method(*given)

    return hook


def _unpack(packed: Packed) -> Tensor:
    swapped_pass: SwappedPass = packed.swapped_pass
    return swapped_pass.unpack(packed)
