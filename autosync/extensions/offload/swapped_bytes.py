"""Bytes of a device that may wait in host memory: where they are, and the copies between."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from autosync.extensions.offload.device_memory import DeviceMemory
from autosync.extensions.offload.host_buffers import HostBuffers
from autosync.extensions.offload.host_transfers import HostTransfers, Transfer


@dataclass(frozen=True, slots=True)
class SwapDevice:
    """A device and the way to its host."""

    memory: DeviceMemory
    transfers: HostTransfers
    buffers: HostBuffers


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


class SwappedBytes:
    """A whole storage.

    on_device: a tensor that holds the bytes there; None while only the host has them.
    """

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
                    self._buffer, last = device.buffers.take(self.size_bytes)
                source = flat_bytes(self.on_device.untyped_storage())
                self._leaving = device.transfers.leave(source, self._buffer, last)
        return self._leaving

    def release(self) -> None:
        """Give the device's bytes up, when the host has them."""
        if self.on_device is not None and self.on_host:
            self._wait_for_copies()
            self.on_device = None

    def come(self) -> Transfer:
        """Take bytes of the device and begin to bring it back."""
        assert self._buffer is not None
        device = self.device
        target = torch.empty(self.size_bytes, dtype=torch.uint8, device=device.memory.device)
        with device.memory.host_memory():
            self._coming = device.transfers.come(self._buffer, target, self._leaving)
        self.on_device = target
        return self._coming

    def _wait_for_copies(self) -> None:
        """Memory that a copy still reads or writes is nobody else's before it has ended."""
        for transfer in (self._leaving, self._coming):
            if transfer is not None:
                self.device.transfers.wait(transfer)


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


def form_of(tensor: Tensor) -> TensorForm:
    offset = int(tensor.storage_offset())
    return TensorForm(tensor.dtype, offset, tensor.shape, tensor.stride())
