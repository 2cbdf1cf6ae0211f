"""The memory that is too small: of an NVIDIA GPU, or of an arena that stands in for one."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor


class DeviceMemory(Protocol):
    """device: where its tensors say they are."""

    device: torch.device

    def allocated_bytes(self) -> int:
        """What is allocated now."""

    def take_peak_bytes(self) -> int:
        """The most that was allocated since the last call."""

    def count(self, tensors: Iterable[Tensor]) -> None:
        """These are on the device from before."""

    def host_memory(self) -> AbstractContextManager[object]:
        """What is allocated within is not the device's."""

    def forbid(self, storage: torch.UntypedStorage, why: str) -> None:
        """Whoever reads or writes it, which has no bytes, gets a RuntimeError that says why."""

    def allow(self, storage: torch.UntypedStorage) -> None:
        """It is about to have bytes again."""

    def synchronize(self) -> None:
        """The calling thread waits for the device."""


class GpuMemory:
    """Of one NVIDIA GPU: what tensors of this process have asked of torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def allocated_bytes(self) -> int:
        return self._requested("current")

    def take_peak_bytes(self) -> int:
        peak = self._requested("peak")
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak

    def count(self, tensors: Iterable[Tensor]) -> None:
        """The allocator knows them."""

    def host_memory(self) -> AbstractContextManager[object]:
        return nullcontext()

    def forbid(self, storage: torch.UntypedStorage, why: str) -> None:
        torch._C._set_storage_data_ptr_access_error_msg(storage._cdata, why)

    def allow(self, storage: torch.UntypedStorage) -> None:
        torch._C._clear_storage_data_ptr_access_error_msg(storage._cdata)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def _requested(self, which: str) -> int:
        return int(torch.cuda.memory_stats(self.device).get(f"requested_bytes.all.{which}", 0))
