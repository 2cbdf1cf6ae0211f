"""A pass in which every activation leaves when it is saved and comes back when it is used, and the
optimizers' state when they update: the least memory, and the slowest. The first pass of a job runs
so and is recorded."""

import time
import weakref

from torch import Tensor

from autosync.runtime.swapping.pass_record import PassRecord
from autosync.runtime.swapping.saved_activations import SavedActivation
from autosync.runtime.swapping.swapped_pass import SwappedParts, SwappedPass


class OnDemandPass(SwappedPass):
    """record: of what it does."""

    def __init__(self, parts: SwappedParts) -> None:
        super().__init__(parts)
        begin = time.perf_counter()
        copied = self.states.put_away()
        self.record = PassRecord(self.device.memory, self.states.sizes())
        self.record.moved(copied, time.perf_counter() - begin)
        self._last_used: weakref.ref[SavedActivation] | None = None

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

    def _bring_state(self, number: int) -> None:
        self.record.pause()
        self._give_up_used()
        self.record.update(number)
        begin = time.perf_counter()
        copied = self.states.fetch(number)
        self.record.moved(copied, time.perf_counter() - begin)
        self.states.bring(number)
        self.record.resume()

    def _give_up_used(self, following: SavedActivation | None = None) -> None:
        """Only now: autograd holds what stays on a device until a little after the backward that
        uses it (gradients of what was broadcast are reduced before), and the record tells so."""
        used = None if self._last_used is None else self._last_used()
        if used is not None and used is not following:
            used.release()
