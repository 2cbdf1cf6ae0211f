"""Swaps a model's activations and, where asked, the state of its optimizers and its values: forward
passes save here, modules, backward passes and updates ask for what they need.

The first pass runs on demand and is recorded; from then on passes follow the schedule that was made
of the record. A pass that does otherwise (the last batch of an epoch, say) ends on demand. Where
several in a row do, or more is on the device than before, the next one is recorded anew.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.idle_spans import SMALLEST_BYTES
from autosync.extensions.offload.on_demand_pass import OnDemandPass
from autosync.extensions.offload.pass_record import RecordedPass
from autosync.extensions.offload.pass_scheduler import PassScheduler
from autosync.extensions.offload.scheduled_pass import ScheduledPass
from autosync.extensions.offload.scheduling import SwapSchedule
from autosync.extensions.offload.swap_device import swap_device_of
from autosync.extensions.offload.swapped_bytes import ordinary_tensors
from autosync.extensions.offload.swapped_pass import Packed, SwappedParts, SwappedPass
from autosync.extensions.offload.swapped_states import SwappedStates
from autosync.extensions.offload.swapped_values import SwappedValues
from autosync.extensions.offload.value_hooks import ValueHooks


def swap_to_host(
    model: nn.Module,
    swap: Offload,
    optimizers: Sequence[Optimizer] = (),
    smallest_bytes: int = SMALLEST_BYTES,
) -> "HostSwapper":
    """Train within a budget of device memory: what has no room waits in the host's.

    optimizers: all of the model; used where their state or values are swapped. smallest_bytes: of a
    tensor that is swapped; smaller ones stay. `remove()` takes it off.

    A schedule that does not fit is refused by BudgetTooSmall where the second pass begins.

    Raises:
        InvalidInput: optimizer state or values are to be swapped, and no optimizer is given.
        NotSupported: see `swap_device.check_swappable`.
        DeviceMemoryExceeded: what is there already is more than the arena holds.
    """
    _check_optimizers(swap, optimizers)
    device = swap_device_of(model)
    device.memory.count([*model.parameters(), *model.buffers()])
    states = SwappedStates(optimizers if swap.optimizer_state else (), device, smallest_bytes)
    values = SwappedValues(model, device, smallest_bytes, swap.values)
    watched = optimizers if swap.optimizer_state or swap.values else ()
    parts = SwappedParts(device, set(), smallest_bytes, states, values)
    swapper = HostSwapper(model, swap.budget_bytes, watched, parts)
    swapper.install()
    return swapper


def _check_optimizers(swap: Offload, optimizers: Sequence[Optimizer]) -> None:
    for name, is_swapped in (("optimizer_state", swap.optimizer_state), ("values", swap.values)):
        if is_swapped and not optimizers:
            raise InvalidInput(
                f"{name} is swapped between updates, and no optimizer was given that makes them.",
                thing=f"swap.{name}",
                value=True,
                remedy=f"Give all optimizers of the model, or leave {name} out.",
            )


class HostSwapper:
    """states, values: what is swapped of them; where either is, a pass begins behind the last
    update of the one before, else with its forward.

    optimizers: whose updates are watched for that; none where activations alone are swapped.
    """

    def __init__(
        self,
        model: nn.Module,
        budget_bytes: int,
        optimizers: Sequence[Optimizer],
        parts: SwappedParts,
    ) -> None:
        self.states = parts.states
        self.values = parts.values
        self._model = model
        self._optimizers = tuple(optimizers)
        self._parts = parts
        self._scheduler = PassScheduler(budget_bytes)
        self._current: SwappedPass | None = None
        self._stepped: set[int] = set()
        self._entered: list[ExitStack | None] = []
        self._handles: list[RemovableHandle] = []
        self._value_hooks = ValueHooks(model, self.values, lambda: self._current, self._entered)

    @property
    def schedule(self) -> SwapSchedule | None:
        """That passes follow; None until the first one has been recorded."""
        return self._scheduler.schedule

    @property
    def recorded(self) -> RecordedPass | None:
        """The pass that it is made of."""
        return self._scheduler.recorded

    @property
    def deviations(self) -> int:
        """Passes in a row that did not follow it."""
        return self._scheduler.deviations

    def install(self) -> None:
        model = self._model
        before, after = self._before_forward(), self._after_forward()
        self._handles.append(model.register_forward_pre_hook(before))
        self._handles.append(model.register_forward_hook(after, always_call=True))
        for optimizer in self._optimizers:
            self._handles += [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
                optimizer.register_state_dict_pre_hook(self._put_state_away),
                optimizer.register_load_state_dict_pre_hook(self._put_state_away),
                optimizer.register_load_state_dict_post_hook(self._put_state_away),
            ]
        self._put_state_away()
        self._find_values()

    def remove(self, keep_state: bool = True) -> None:
        """Saved tensors, values and the optimizers' state stay on the device from now on.

        keep_state: False leaves in host memory what is there, for whoever puts another state back.
        """
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._value_hooks.remove()
        if not self.values.are_here():
            gc.collect()  # what a step that failed has left takes their room
        with ordinary_tensors():
            self.values.keep()
            if keep_state:
                self.states.refresh()
                for number in range(len(self.states.optimizers)):
                    self.states.bring(number)

    def _before_forward(self) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, args: Any) -> None:
            if module is not self._model:  # a copy of the model
                return
            hooks = None
            if torch.is_grad_enabled():
                hooks = ExitStack()
                if not self._entered:
                    self._begin_pass().begin_forward()
                    if self._scheduler.of_pass is None and self.values.tensors:
                        hooks.enter_context(self._value_hooks.noticing_reads())
                hooks.enter_context(saved_tensors_hooks(self._pack, _unpack))
            elif not self._entered:
                self._before_evaluation()
            self._entered.append(hooks)

        return hook

    def _after_forward(self) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if module is self._model and self._entered:
                if self._current is not None:
                    self._current.end_reads_apart()
                hooks = self._entered.pop()
                if hooks is not None:
                    hooks.close()

        return hook

    def _pack(self, tensor: Tensor) -> Packed:
        assert self._current is not None
        return self._current.pack(tensor)

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Any) -> None:
        """args: the optimizer and what `step` was given."""
        swapped = "values" if self.values.are_swapped else "optimizer_state"
        if any(callable(given) for given in (*args[1:], *kwargs.values())):
            raise NotSupported(
                f"{type(optimizer).__name__}.step() was given a closure, which runs forward and "
                "backward passes within the update: its state and values are needed then, and "
                "cannot be elsewhere.",
                thing=f"swap.{swapped}",
                value=type(optimizer).__name__,
                remedy=f"Call step() without one behind backward(), or leave {swapped} out.",
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
        elif self._current is not None:
            self._current.stay()

    def _find_values(self) -> None:
        self.values.refresh()
        self._value_hooks.install()

    def _begin_pass(self) -> SwappedPass:
        """Of several forward passes before one backward pass, the first begins it, where the last
        update has not."""
        last = self._current
        if last is not None and not last.is_told and (last.is_held or self._can_begin(last)):
            return last
        self._end_pass()
        self._stepped.clear()
        self.states.refresh()
        self.values.come_home()
        self._find_values()
        held = self._parts.device.memory.allocated_bytes() - self.states.device_bytes()
        self._scheduler.make_room(held, self.states.sizes(), self.values.sizes())
        stay = (*self._model.parameters(), *self._model.buffers())
        unswapped = {tensor.untyped_storage()._cdata for tensor in stay}
        parts = replace(self._parts, unswapped=unswapped)
        if (schedule := self._scheduler.of_pass) is None:
            self._current = OnDemandPass(parts)
        else:
            self._current = ScheduledPass(parts, schedule)
        return self._current

    def _can_begin(self, prepared: SwappedPass) -> bool:
        """Whether nothing has happened in it, and it knows the values as they are."""
        return prepared.is_fresh and self.values.are_current()

    def _end_pass(self) -> None:
        last = self._current
        if last is None or not last.is_told:
            return
        self._current = None
        if last.moves_values:  # its backward pass has failed
            self.values.unpin()
        self._scheduler.note_pass(isinstance(last, ScheduledPass) and last.deviated)
        if isinstance(last, OnDemandPass):
            recorded = last.record.finished()
            is_whole = last.has_updated or not self._optimizers  # else the next one may update
            if is_whole and not self.values.take_learned():
                self._scheduler.adopt(recorded)


def _unpack(packed: Packed) -> Tensor:
    swapped_pass: SwappedPass = packed.swapped_pass
    return swapped_pass.unpack(packed)
