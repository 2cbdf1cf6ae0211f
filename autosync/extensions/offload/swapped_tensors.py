"""Tensors that may wait in host memory: where their bytes are, and the copies to and fro."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autosync.errors import InvalidInput
from autosync.extensions.offload.device import SwapDevice, Transfer


@dataclass(frozen=True, slots=True)
class TensorForm:
    """How a tensor lies in its storage."""

    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]

    def within(self, held: Tensor) -> Tensor:
        """The tensor of this form in the storage of another."""
        empty = torch.empty(0, dtype=self.dtype, device=held.device)
        return empty.set_(held.untyped_storage(), self.offset, self.shape, self.stride)


def form_of(tensor: Tensor) -> TensorForm:
    offset = int(tensor.storage_offset())
    return TensorForm(tensor.dtype, offset, tensor.shape, tensor.stride())


class SwappedBytes:
    """A whole storage. on_device: a tensor that holds the bytes there; None while only the host has
    them."""

    def __init__(self, on_device: Tensor, device: SwapDevice) -> None:
        self.device = device
        self.size_bytes = on_device.untyped_storage().nbytes()
        self.on_device: Tensor | None = on_device
        self._buffer: Tensor | None = None
        self._leaving: Transfer | None = None
        self._coming: Transfer | None = None

    def __del__(self) -> None:
        self._wait_for_copies()

    @property
    def on_host(self) -> bool:
        """Whether the host has the bytes, or will have them."""
        return self._leaving is not None

    def leave(self) -> Transfer:
        """Begin to copy it to the host, where the host does not have it."""
        if self._leaving is None:
            assert self.on_device is not None
            device, last = self.device, self._coming
            with device.memory.host_memory():
                if self._buffer is None:
                    self._buffer, last = device.take_buffer(self.size_bytes)
                source = flat_bytes(self.on_device.untyped_storage())
                self._leaving = device.transfers.leave(source, self._buffer, last)
        return self._leaving

    def release(self) -> None:
        """Give the device's bytes up, when the host has them."""
        if self.on_device is None or not self.on_host:
            return
        self._wait_for_copies()
        self.on_device = None

    def come(self) -> Transfer:
        """Take bytes of the device and begin to bring it back."""
        assert self._buffer is not None
        target = torch.empty(self.size_bytes, dtype=torch.uint8, device=self.device.memory.device)
        with self.device.memory.host_memory():
            self._coming = self.device.transfers.come(self._buffer, target, self._leaving)
        self.on_device = target
        return self._coming

    def _wait_for_copies(self) -> None:
        """Memory that a copy still reads or writes is nobody else's before it has ended."""
        for transfer in (self._leaving, self._coming):
            if transfer is not None:
                self.device.transfers.wait(transfer)


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
            last = self._coming or self._leaving
            self.device.free[self.size_bytes].append((self._buffer, last))

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


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """What is made within can be written and compared by anybody, wherever the script is: an
    inference tensor, as `torch.inference_mode` makes them, counts no changes, and no other thread
    may write it."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def flat_bytes(storage: torch.UntypedStorage) -> Tensor:
    """All of it."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def is_plain(value: object) -> bool:
    """Whether it is a dense tensor, or such a parameter, and of no class of its own."""
    return (
        isinstance(value, Tensor)
        and type(value) in (Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
    )
