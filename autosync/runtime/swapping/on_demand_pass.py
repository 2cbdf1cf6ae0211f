"""A pass in which every activation leaves when it is saved and comes back when it is used: the
least memory, and the slowest. The first pass of a job runs so and is recorded."""

import time
import weakref

from torch import Tensor

from autosync.runtime.swapping.pass_record import PassRecord
from autosync.runtime.swapping.saved_activations import SavedActivation, SwapDevice
from autosync.runtime.swapping.swapped_pass import SwappedPass


class OnDemandPass(SwappedPass):
    """record: of what it does."""

    def __init__(self, device: SwapDevice, unswapped: set[int], smallest_bytes: int) -> None:
        super().__init__(device, unswapped, smallest_bytes)
        self.record = PassRecord(device.memory)
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

    def _give_up_used(self, following: SavedActivation) -> None:
        """Only now: autograd holds what stays on a device until a little after the backward that
        uses it (gradients of what was broadcast are reduced before), and the record tells so."""
        used = None if self._last_used is None else self._last_used()
        if used is not None and used is not following:
            used.release()
