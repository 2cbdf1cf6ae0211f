"""Swaps a model's activations: its forward passes save them here, its backward passes ask for them.

The first pass runs on demand and is recorded; from then on passes follow the schedule that was made
of the record. A pass that does otherwise (the last batch of an epoch, say) ends on demand. Where
several in a row do, or more is on the device than before, the next one is recorded anew.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.hooks import RemovableHandle

from autosync.errors import NotSupported
from autosync.runtime.swapping.arena import Arena
from autosync.runtime.swapping.device_memory import DeviceMemory, GpuMemory
from autosync.runtime.swapping.host_buffers import HostBuffers
from autosync.runtime.swapping.host_transfers import GpuTransfers, HostTransfers, ThreadTransfers
from autosync.runtime.swapping.on_demand_pass import OnDemandPass
from autosync.runtime.swapping.pass_record import RecordedPass
from autosync.runtime.swapping.saved_activations import SavedTensor, SwapDevice, UnswappedTensor
from autosync.runtime.swapping.scheduled_pass import PassSchedule, ScheduledPass, pass_schedule
from autosync.runtime.swapping.swapped_pass import Packed, SwappedPass
from autosync.swap_schedule.idle_spans import SMALLEST_BYTES
from autosync.swap_schedule.scheduling import SwapSchedule, least_budget_bytes, make_schedule

log = logging.getLogger("autosync")

MOST_DEVIATIONS = 2
"""Passes in a row that do not do what the recorded one did, before one is recorded anew."""
NEGLIGIBLE = 0.01
"""Of what the fullest moment holds: so little more than where the recorded pass began is added to
all moments; what is more changes them, as the optimizer's first step does."""


def swap_activations(
    model: nn.Module, budget_bytes: int, smallest_bytes: int = SMALLEST_BYTES
) -> "ActivationSwapper":
    """Train within a budget of device memory: activations that have no room wait in the host's.

    budget_bytes: what a step may take of the device, all in all. smallest_bytes: of a tensor that
    is swapped; smaller ones stay. `remove()` takes it off.

    A schedule that does not fit is refused by InvalidStrategy where the second pass begins.

    Raises:
        NotSupported: see `check_swappable`.
        DeviceMemoryExceeded: the model alone is more than the arena holds.
    """
    device = swap_device(model)
    device.memory.count([*model.parameters(), *model.buffers()])
    swapper = ActivationSwapper(model, budget_bytes, device, smallest_bytes)
    swapper.install()
    return swapper


def check_swappable(model: nn.Module, given: nn.Module) -> None:
    """given: what the script has, a compiled form of the model perhaps.

    Raises:
        NotSupported: it is compiled, or in host memory and no arena stands for a device.
    """
    if given is not model:
        raise NotSupported(
            "the model is compiled, and what a compiled forward pass saves cannot be swapped.",
            thing="swap.budget_bytes",
            remedy="Train the plain model, or use a strategy without swap.",
        )
    device_memory(model)


def device_memory(model: nn.Module) -> DeviceMemory:
    """Raises NotSupported where the model is in host memory and no arena stands for a device."""
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    if device.type == "cuda":
        return GpuMemory(device)
    if Arena.entered:
        return Arena.entered[-1]
    raise NotSupported(
        f"activations are swapped from an NVIDIA GPU to host memory, and the model is on {device}.",
        thing="swap.budget_bytes",
        value=str(device),
        remedy="Move the model to a GPU, use a strategy without swap, or emulate a device: train "
        "within `autosync.runtime.swapping.arena.Arena(bytes)`.",
    )


def swap_device(model: nn.Module) -> SwapDevice:
    """Raises NotSupported as `device_memory` does."""
    memory = device_memory(model)
    transfers: HostTransfers
    if isinstance(memory, Arena):
        transfers = ThreadTransfers(memory.bytes_per_second)
    else:
        transfers = GpuTransfers(memory.device)
    return SwapDevice(memory, transfers, HostBuffers(transfers.host_buffer))


class ActivationSwapper:
    """schedule: that passes follow; None while the first one is recorded. recorded: what it is made
    of. deviations: passes in a row that did not follow it."""

    def __init__(
        self, model: nn.Module, budget_bytes: int, device: SwapDevice, smallest_bytes: int
    ) -> None:
        self.schedule: SwapSchedule | None = None
        self.recorded: RecordedPass | None = None
        self.deviations = 0
        self._model = model
        self._budget_bytes = budget_bytes
        self._device = device
        self._smallest_bytes = smallest_bytes
        self._pass_schedule: PassSchedule | None = None
        self._current: SwappedPass | None = None
        self._entered: list[saved_tensors_hooks | None] = []
        self._handles: list[RemovableHandle] = []

    def install(self) -> None:
        model = self._model
        before, after = self._before_forward(), self._after_forward()
        self._handles.append(model.register_forward_pre_hook(before))
        self._handles.append(model.register_forward_hook(after, always_call=True))

    def remove(self) -> None:
        """Saved tensors stay on the device from now on."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before_forward(self) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, args: Any) -> None:
            if module is not self._model:  # a copy of the model
                return
            hooks = None
            if torch.is_grad_enabled():
                if not self._entered:
                    self._begin_pass()
                hooks = saved_tensors_hooks(self._pack, _unpack)
                hooks.__enter__()
            elif not self._entered:
                self._end_pass()
            self._entered.append(hooks)

        return hook

    def _after_forward(self) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if module is self._model and self._entered:
                hooks = self._entered.pop()
                if hooks is not None:
                    hooks.__exit__()

        return hook

    def _pack(self, tensor: Tensor) -> Packed:
        assert self._current is not None
        return self._current.pack(tensor)

    def _begin_pass(self) -> None:
        """Of several forward passes before one backward pass, the first begins it."""
        if self._current is not None and not self._current.has_used and self._current.is_held:
            return
        self._end_pass()
        if self._pass_schedule is not None:
            self._make_room()
        unswapped = {
            tensor.untyped_storage()._cdata
            for tensor in (*self._model.parameters(), *self._model.buffers())
        }
        given = self._device, unswapped, self._smallest_bytes
        if self._pass_schedule is None:
            self._current = OnDemandPass(*given)
        else:
            self._current = ScheduledPass(*given, self._pass_schedule)

    def _end_pass(self) -> None:
        """What the last pass did is known, if a backward pass has begun."""
        last = self._current
        if last is None or not last.has_used:
            return
        self._current = None
        if isinstance(last, OnDemandPass):
            self.deviations = 0
            self._adopt(last.record.finished())
        elif isinstance(last, ScheduledPass):
            self.deviations = self.deviations + 1 if last.deviated else 0
            if self.deviations >= MOST_DEVIATIONS:
                self._pass_schedule = None

    def _adopt(self, recorded: RecordedPass) -> None:
        schedule = make_schedule(
            recorded.spans, recorded.moments, self._budget_bytes, recorded.link
        )
        self.recorded, self.schedule = recorded, schedule
        self._pass_schedule = pass_schedule(recorded, schedule)
        log.info(
            "swapping: %d of %d idle activations stay, %.1f MB a pass travel, at most %.1f MB of "
            "the device are held.",
            int(schedule.kept.sum()),
            len(schedule.kept),
            schedule.moved_bytes / 1e6,
            schedule.peak_bytes / 1e6,
        )

    def _make_room(self) -> None:
        """What has come to the device since the recorded pass began stays there: the optimizer's
        state after its first step, gradients that add up over passes, a list of losses."""
        assert self.recorded is not None
        grown = self._device.memory.allocated_bytes() - self.recorded.begin_bytes
        moments = self.recorded.moments
        if grown > NEGLIGIBLE * least_budget_bytes(moments):
            self._pass_schedule = None
        elif grown > 0:
            fuller = replace(moments, base_bytes=moments.base_bytes + grown)
            begin_bytes = self.recorded.begin_bytes + grown
            self._adopt(replace(self.recorded, moments=fuller, begin_bytes=begin_bytes))


def _unpack(packed: Packed) -> Tensor:
    if isinstance(packed, UnswappedTensor):
        return packed.unpacked()
    assert isinstance(packed, SavedTensor)
    swapped_pass: SwappedPass = packed.swapped_pass
    return swapped_pass.unpack(packed)
