"""A pass in which every activation leaves when it is saved and comes back when it is used, values
as well, and the optimizers' state when they update: the least memory, and the slowest. The first
pass of a job runs so and is recorded."""

import time
import weakref
from collections.abc import Callable

from torch import Tensor

from autosync.extensions.offload.pass_record import PassRecord
from autosync.extensions.offload.saved_activations import SavedActivation
from autosync.extensions.offload.swapped_pass import SwappedParts, SwappedPass
from autosync.extensions.offload.swapped_values import SwappedValue


class OnDemandPass(SwappedPass):
    """record: of what it does."""

    def __init__(self, parts: SwappedParts) -> None:
        super().__init__(parts)
        begin = time.perf_counter()
        copied = self.states.put_away()
        self.record = PassRecord(self.device.memory, self.states.sizes(), self.values.sizes())
        self.record.moved(copied, time.perf_counter() - begin)
        self._last_used: weakref.ref[SavedActivation] | None = None

    def _begin_forward(self) -> None:
        self.record.pause()
        self._give_up_used()
        self._timed(self.values.copy_out)
        for value in self._put_values_away():
            self.record.left(value)
        self.record.begin_forward()
        self.record.resume()

    def _save(self, activation: SavedActivation, is_new: bool) -> None:
        self.record.pause()
        self._give_up_used(activation)
        self.record.access("save", activation)
        if is_new:
            self.record.watch(activation)
            begin = time.perf_counter()
            self.device.transfers.finish(activation.leave())
            self.record.moved(activation.size_bytes, time.perf_counter() - begin)
            activation.release()
        self.record.resume()

    def _use(self, activation: SavedActivation) -> Tensor:
        self.record.pause()
        self._give_up_used(activation)
        self.record.access("use", activation)
        if activation.on_device is None:
            begin = time.perf_counter()
            self.device.transfers.finish(activation.come())
            self.record.moved(activation.size_bytes, time.perf_counter() - begin)
            self.record.watch(activation)
        held = activation.bring()
        self._last_used = weakref.ref(activation)
        self.record.resume()
        return held

    def _use_value(self, value: SwappedValue) -> None:
        self.record.pause()
        self._give_up_used()
        self.record.read(value)
        if value.on_device is None:
            self._timed(lambda: self.values.come_home([value]))
            self.record.returned(value)
            self._on_demand.append(value)
        self.record.resume()

    def _keep_values(self) -> None:
        away = self._values_away()
        self._timed(self.values.keep)
        for value in away:
            self.record.returned(value)

    def _bring_values(self) -> None:
        self.record.pause()
        self._give_up_used()
        self.record.end_backward()
        self._come_home()
        self.record.resume()

    def _bring_for_update(self, number: int) -> None:
        self.record.pause()
        self._give_up_used()
        self.record.update(number)
        self._come_home()
        self._timed(lambda: self.states.fetch(number))
        self.states.bring(number)
        self.record.resume()

    def _timed(self, copy: Callable[[], int]) -> None:
        """copy: returns the bytes that it has copied."""
        begin = time.perf_counter()
        copied = copy()
        self.record.moved(copied, time.perf_counter() - begin)

    def _come_home(self) -> None:
        """And none leaves before the next forward pass."""
        away = self._values_away()
        self._timed(self.values.come_home)
        self._on_demand.clear()
        for value in away:
            self.record.returned(value)

    def _values_away(self) -> list[SwappedValue]:
        return [value for value in self.values.tensors if value.on_device is None]

    def _give_up_used(self, following: SavedActivation | None = None) -> None:
        """Only now: autograd holds what stays on a device until a little after the backward that
        uses it (gradients of what was broadcast are reduced before), and the record tells so."""
        used = None if self._last_used is None else self._last_used()
        if used is not None and used is not following:
            used.release()
        for value in self._on_demand:
            if not value.users:
                value.compare()
        for value in self._give_up_values():
            self.record.left(value)
