"""An activation that autograd has saved, wherever its bytes are, and the tensors that lie in it."""

import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from autosync.errors import InvalidInput
from autosync.extensions.offload.host_transfers import Transfer
from autosync.extensions.offload.swapped_bytes import SwapDevice, SwappedBytes, TensorForm


class SavedActivation(SwappedBytes):
    """One storage that tensors were saved from. It lives as long as autograd holds one of them.

    position: in the order in which a pass saves storages. version: of the tensor that holds it on
    the device, when that was saved; None of one that was brought back. watch: the storage that was
    saved, or that it was brought back to.
    """

    def __init__(self, position: int, tensor: Tensor, device: SwapDevice) -> None:
        super().__init__(tensor.detach(), device)
        self._changes = 0
        self.position = position
        self.version: int | None = tensor._version
        self.watch = weakref.ref(tensor.untyped_storage())

    def __del__(self) -> None:
        super().__del__()
        if self._buffer is not None:
            self.device.buffers.give(self._buffer, self._coming or self._leaving)

    def release(self) -> None:
        if self.on_host:
            self._changes = self._count_changes()
        super().release()

    def come(self) -> Transfer:
        coming = super().come()
        assert self.on_device is not None
        self.version, self.watch = None, weakref.ref(self.on_device.untyped_storage())
        return coming

    def bring(self) -> Tensor:
        """A tensor that holds its bytes on the device, for the script's work from here on.

        Raises:
            InvalidInput: somebody has changed them since they were saved.
        """
        if self.on_device is None:
            self.come()
        if self._coming is not None:
            self.device.transfers.wait(self._coming)
        assert self.on_device is not None
        if changes := self._changes or self._count_changes():
            raise changed_in_place(changes)
        return self.on_device

    def _count_changes(self) -> int:
        """How often it was changed in place after it was saved, as far as it still is there."""
        if self.on_device is None or self.version is None:
            return self._changes
        return self.on_device._version - self.version


@dataclass(frozen=True, eq=False)
class SavedTensor:
    """What autograd holds in place of a tensor: where that lies in an activation. swapped_pass: in
    which it was saved."""

    activation: SavedActivation
    swapped_pass: Any
    form: TensorForm


@dataclass(frozen=True, eq=False)
class UnswappedTensor:
    """What autograd holds of a tensor that stays. swapped_pass: in which it was saved. version: at
    that time."""

    tensor: Tensor
    swapped_pass: Any
    version: int

    def unpacked(self) -> Tensor:
        """Raises InvalidInput where somebody has changed it since."""
        if changes := self.tensor._version - self.version:
            raise changed_in_place(changes)
        return self.tensor


def changed_in_place(changes: int) -> InvalidInput:
    """What torch itself refuses where tensors are saved without hooks."""
    return InvalidInput(
        f"a tensor that backward needs was changed in place after it was saved ({changes} times), "
        "so gradients would be wrong.",
        thing="saved tensor",
        value=changes,
        remedy="Do not change what an operation keeps for its backward; "
        "torch.autograd.set_detect_anomaly(True), without swapping, shows which it is.",
    )
