"""An activation that autograd has saved, wherever its bytes are, and the tensors that lie in it."""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autosync.errors import InvalidInput
from autosync.runtime.swapping.device_memory import DeviceMemory
from autosync.runtime.swapping.host_buffers import HostBuffers
from autosync.runtime.swapping.host_transfers import HostTransfers, Transfer


@dataclass(frozen=True, slots=True)
class SwapDevice:
    """A device and the way to its host."""

    memory: DeviceMemory
    transfers: HostTransfers
    buffers: HostBuffers


class SavedActivation:
    """One storage that tensors were saved from. It lives as long as autograd holds one of them.

    position: in the order in which a pass saves storages. on_device: a tensor that holds the bytes
    there; None while only the host has them. version: of that tensor when it was saved; None of one
    that was brought back. watch: the storage that was saved, or that it was brought back to.
    """

    def __init__(self, position: int, tensor: Tensor, device: SwapDevice) -> None:
        self._device = device
        self._changes = 0
        self._buffer: Tensor | None = None
        self._leaving: Transfer | None = None
        self._coming: Transfer | None = None
        storage = tensor.untyped_storage()
        self.position = position
        self.size_bytes = storage.nbytes()
        self.on_device: Tensor | None = tensor.detach()
        self.version: int | None = tensor._version
        self.watch = weakref.ref(storage)

    def __del__(self) -> None:
        self._wait_for_copies()
        if self._buffer is not None:
            self._device.buffers.give(self._buffer, self._coming or self._leaving)

    @property
    def on_host(self) -> bool:
        """Whether the host has the bytes, or will have them."""
        return self._buffer is not None

    def leave(self) -> Transfer:
        """Begin to copy it to the host."""
        assert self.on_device is not None
        device = self._device
        with device.memory.host_memory():
            self._buffer, last = device.buffers.take(self.size_bytes)
            source = flat_bytes(self.on_device)
            self._leaving = device.transfers.leave(source, self._buffer, last)
        return self._leaving

    def release(self) -> None:
        """Give the device's bytes up, when the host has them."""
        if self.on_device is None or self._buffer is None:
            return
        self._wait_for_copies()
        self._changes = self._count_changes()
        self.on_device = None

    def come(self) -> Transfer:
        """Take bytes of the device and begin to bring it back."""
        assert self._buffer is not None
        device = self._device
        target = torch.empty(self.size_bytes, dtype=torch.uint8, device=device.memory.device)
        with device.memory.host_memory():
            self._coming = device.transfers.come(self._buffer, target, self._leaving)
        self.on_device, self.version = target, None
        self.watch = weakref.ref(target.untyped_storage())
        return self._coming

    def bring(self) -> Tensor:
        """A tensor that holds its bytes on the device, for the script's work from here on.

        Raises:
            InvalidInput: somebody has changed them since they were saved.
        """
        if self.on_device is None:
            self.come()
        if self._coming is not None:
            self._device.transfers.wait(self._coming)
        assert self.on_device is not None
        if changes := self._changes or self._count_changes():
            raise changed_in_place(changes)
        return self.on_device

    def _wait_for_copies(self) -> None:
        """Memory that a copy still reads or writes is nobody else's before it has ended."""
        for transfer in (self._leaving, self._coming):
            if transfer is not None:
                self._device.transfers.wait(transfer)

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
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]

    def within(self, held: Tensor) -> Tensor:
        """held: as `SavedActivation.bring` gives it."""
        empty = torch.empty(0, dtype=self.dtype, device=held.device)
        return empty.set_(held.untyped_storage(), self.offset, self.shape, self.stride)


@dataclass(frozen=True, eq=False)
class UnswappedTensor:
    """What autograd holds of a tensor that stays. version: when it was saved."""

    tensor: Tensor
    version: int

    def unpacked(self) -> Tensor:
        """Raises InvalidInput where somebody has changed it since."""
        if changes := self.tensor._version - self.version:
            raise changed_in_place(changes)
        return self.tensor


def flat_bytes(tensor: Tensor) -> Tensor:
    """The whole storage that a tensor lies in."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


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
