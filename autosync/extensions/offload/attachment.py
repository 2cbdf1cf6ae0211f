"""Swaps a model's activations and, where asked, the state of its optimizers and its values: forward
passes save here, operations, backward passes and updates ask for what they need.

The first pass runs on demand and is recorded; from then on passes follow the schedule that was made
of the record. A pass that does otherwise (the last batch of an epoch, say) ends on demand. Where
several in a row do, or more is on the device than before, the next one is recorded anew.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.offload.device import check_swappable, swap_device_of
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.optimizer_states import SwappedStates
from autosync.extensions.offload.parameter_values import (
    ParameterReads,
    SwappedValue,
    SwappedValues,
)
from autosync.extensions.offload.pass_record import RecordedPass, States
from autosync.extensions.offload.schedule import (
    SMALLEST_BYTES,
    Moments,
    SwapSchedule,
    least_budget_bytes,
    make_schedule,
)
from autosync.extensions.offload.swapped_pass import (
    Packed,
    PassSchedule,
    SwappedParts,
    SwappedPass,
    pass_schedule,
)
from autosync.extensions.offload.swapped_tensors import ordinary_tensors

log = logging.getLogger("autosync")

MOST_DEVIATIONS = 2
"""Passes in a row that do not do what the recorded one did, before one is recorded anew."""
NEGLIGIBLE = 0.01
"""Of what the fullest moment holds: so little more than where the recorded pass began is added to
all moments; what is more changes them, as the optimizer's first step does."""
HEADROOM = 0.001
"""Of what the fullest moment holds: a schedule counts on so much more, as far as the budget has
room for it. A list of losses, which grows by 4 bytes a pass, then takes no new schedule in each."""


def check(model: nn.Module, called: nn.Module) -> None:
    """Raises NotSupported as `device.check_swappable`."""
    check_swappable(model, called)


def attach(
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
        NotSupported: see `device.check_swappable`.
        DeviceMemoryExceeded: what is there already is more than the arena holds.
    """
    for name, is_swapped in (("optimizer_state", swap.optimizer_state), ("values", swap.values)):
        if is_swapped and not optimizers:
            raise InvalidInput(
                f"{name} is swapped between updates, and no optimizer was given that makes them.",
                thing=f"swap.{name}",
                value=True,
                remedy=f"Give all optimizers of the model, or leave {name} out.",
            )
    device = swap_device_of(model)
    device.memory.count([*model.parameters(), *model.buffers()])
    states = SwappedStates(optimizers if swap.optimizer_state else (), device, smallest_bytes)
    values = SwappedValues(model, device, smallest_bytes, swap.values)
    watched = optimizers if swap.optimizer_state or swap.values else ()
    parts = SwappedParts(device, set(), smallest_bytes, states, values)
    swapper = HostSwapper(model, swap.budget_bytes, watched, parts)
    swapper.install()
    return swapper


class PassScheduler:
    """recorded: what the schedule is made of, with what has come to stay since. schedule: the last
    one. of_pass: what passes follow; None while one is recorded. deviations: passes in a row that
    did not follow it."""

    def __init__(self, budget_bytes: int) -> None:
        self.recorded: RecordedPass | None = None
        self.schedule: SwapSchedule | None = None
        self.of_pass: PassSchedule | None = None
        self.deviations = 0
        self._budget_bytes = budget_bytes
        self._headroom_bytes = 0

    def adopt(self, recorded: RecordedPass) -> None:
        """Raises BudgetTooSmall where the budget does not hold it."""
        least = least_budget_bytes(recorded.moments)
        headroom = max(0, min(int(HEADROOM * least), self._budget_bytes - least))
        moments = _fuller(recorded.moments, headroom)
        schedule = make_schedule(recorded.spans, moments, self._budget_bytes, recorded.link)
        self.recorded, self.schedule = recorded, schedule
        self.of_pass = pass_schedule(recorded, schedule)
        self._headroom_bytes = headroom
        log.info(
            "swapping: %d of %d idle tensors stay, %.1f MB a pass travel, at most %.1f MB of "
            "the device are held.",
            int(schedule.kept.sum()),
            len(schedule.kept),
            schedule.moved_bytes / 1e6,
            schedule.peak_bytes / 1e6,
        )

    def note_pass(self, deviated: bool) -> None:
        """A pass has ended. deviated: it did not do what the recorded one did."""
        self.deviations = self.deviations + 1 if deviated else 0
        if self.deviations >= MOST_DEVIATIONS:
            self.of_pass = None

    def make_room(self, held_bytes: int, states: States, values: tuple[int, ...]) -> None:
        """What has come to the device since the recorded pass began stays there: gradients that add
        up over passes, a list of losses, the optimizer's state where that is not swapped.

        held_bytes: on the device where a pass begins, without swapped state. states, values: bytes
        of what is swapped of them. What is negligible and fits is counted on in every moment; else
        the next pass is recorded.
        """
        if self.of_pass is None or self.recorded is None:
            return
        recorded, grown = self.recorded, held_bytes - self.recorded.begin_bytes
        least = least_budget_bytes(recorded.moments)
        is_other = (states, values) != (recorded.states, recorded.values)
        if is_other or grown > min(NEGLIGIBLE * least, self._budget_bytes - least):
            self.of_pass = None
        elif grown > 0:
            moments = _fuller(recorded.moments, grown)
            self.recorded = replace(recorded, moments=moments, begin_bytes=held_bytes)
            self._headroom_bytes -= grown
            if self._headroom_bytes < 0:
                self.adopt(self.recorded)


def _fuller(moments: Moments, by_bytes: int) -> Moments:
    return replace(moments, base_bytes=moments.base_bytes + by_bytes)


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
        self._called_alone: tuple[nn.Module, ExitStack] | None = None
        self._hooked: set[nn.Module] = set()
        self._handles: list[RemovableHandle] = []

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
        self._find_values()

    def remove(self, keep_state: bool = True) -> None:
        """Saved tensors, values and the optimizers' state stay on the device from now on.

        keep_state: False leaves in host memory what is there, for whoever puts another state back.
        """
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if not self.values.are_here():
            gc.collect()  # what a step that failed has left takes their room
        with ordinary_tensors():
            self.values.keep()
            if keep_state:
                self.states.refresh()
                for number in range(len(self.states.optimizers)):
                    self.states.bring(number)

    def _before_forward(self, module: nn.Module, *given: Any) -> None:
        if module is not self._model:  # a copy of the model
            return
        hooks = None
        if torch.is_grad_enabled():
            hooks = ExitStack()
            if not self._entered:
                self._begin_pass().begin_forward()
                hooks.enter_context(self._noticed_reads(pinned=False))
            hooks.enter_context(saved_tensors_hooks(self._pack, _unpack))
        elif not self._entered:
            self._before_evaluation()
        self._entered.append(hooks)

    def _after_forward(self, module: nn.Module, *given: Any) -> None:
        if module is self._model and self._entered:
            hooks = self._entered.pop()
            if hooks is not None:
                hooks.close()

    def _before_part(self, module: nn.Module, *given: Any) -> None:
        """A checkpoint's second forward, or the script's call of a part of the model. What it saves
        for backward is not seen here."""
        if not self._entered and self._called_alone is None:
            hooks = ExitStack()
            hooks.enter_context(self._noticed_reads(pinned=torch.is_grad_enabled()))
            self._called_alone = module, hooks

    def _after_part(self, module: nn.Module, *given: Any) -> None:
        if self._called_alone is not None and self._called_alone[0] is module:
            self._called_alone[1].close()
            self._called_alone = None

    @contextmanager
    def _noticed_reads(self, pinned: bool) -> Iterator[None]:
        """Within, values are on the device while an operation reads them. pinned: also after that,
        until the next backward pass or update ends."""
        with ExitStack() as hooks:
            if self.values.tensors:
                hooks.enter_context(ParameterReads(self.values, partial(self._reading, pinned)))
            yield

    @contextmanager
    def _reading(self, pinned: bool, values: list[SwappedValue]) -> Iterator[None]:
        for value in values:
            value.users += 1
            value.is_pinned |= pinned
        try:
            if self._current is not None:
                self._current.read(values)
            yield
        finally:
            for value in values:
                value.users -= 1

    def _before_access(self, module: nn.Module, *given: Any) -> None:
        """Somebody reads or writes the module's values as they are."""
        owned = (each for each in module._parameters.values() if each is not None)
        if self._current is not None and any(self.values.of(each) for each in owned):
            self._current.stay()

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
        """And watch the modules that may read them. Before the hooks that others have there, which
        may make something of a weight."""
        self.values.refresh()
        if not self.values.tensors:
            return
        for module in [each for each in self._model.modules() if each not in self._hooked]:
            self._hooked.add(module)
            self._handles += [
                module.register_state_dict_pre_hook(_hook(self._before_access)),
                module.register_load_state_dict_pre_hook(_hook(self._before_access)),
            ]
            if module is not self._model:
                self._handles += [
                    module.register_forward_pre_hook(_hook(self._before_part), prepend=True),
                    module.register_forward_hook(_hook(self._after_part), always_call=True),
                ]

    def _begin_pass(self) -> SwappedPass:
        """Of several forward passes before one backward pass, the first begins it, where the last
        update has not."""
        last = self._current
        if last is not None and not last.is_under_way and (last.is_held or self._can_begin(last)):
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
        self._current = SwappedPass(parts, self._scheduler.of_pass)
        return self._current

    def _can_begin(self, prepared: SwappedPass) -> bool:
        """Whether nothing has happened in it, and it knows the values as they are."""
        return prepared.is_fresh and self.values.are_current()

    def _end_pass(self) -> None:
        last = self._current
        if last is None or not last.is_under_way:
            return
        self._current = None
        if last.moves_values:  # its backward pass has failed
            self.values.unpin()
        self._scheduler.note_pass(last.deviated)
        if last.record is not None:
            recorded = last.record.finished()
            if last.has_updated or not self._optimizers:  # else the next one may update
                self._scheduler.adopt(recorded)


def _hook(method: Callable[..., None]) -> Callable[..., None]:
    """Modules are copied with their hooks: with a method its swapper would be copied, too."""

    def hook(*given: Any) -> None:
        method(*given)

    return hook


def _unpack(packed: Packed) -> Tensor:
    swapped_pass: SwappedPass = packed.swapped_pass
    return swapped_pass.unpack(packed)
