"""Copies between a device and host memory that compute does not wait for.

Each direction has a stream of its own: copies of a direction follow each other, those of both run
at once. On a GPU a stream is CUDA's and host memory is pinned; beside an arena it is a thread.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

Transfer = Future[None] | torch.cuda.Event
"""A copy that was asked for; its end can be waited for."""


class HostTransfers(Protocol):
    """All tensors are flat bytes."""

    def host_buffer(self, size_bytes: int) -> Tensor:
        """Memory of the host that copies are fast to."""

    def leave(self, source: Tensor, buffer: Tensor, after: Transfer | None) -> Transfer:
        """Copy to the host what the script's work so far has written, and not before `after`. The
        caller holds the source until it has waited."""

    def come(self, buffer: Tensor, target: Tensor, after: Transfer | None) -> Transfer:
        """Copy to the device, after the script's work so far and not before `after`."""

    def wait(self, transfer: Transfer) -> None:
        """The script's work from here on runs after it."""

    def finish(self, transfer: Transfer) -> None:
        """The calling thread waits."""


class ThreadTransfers:
    """Beside an arena: a thread a direction, no faster than the stated rate. They end when nobody
    holds this any more."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._leaving = ThreadPoolExecutor(1, "autosync-swap-out")
        self._coming = ThreadPoolExecutor(1, "autosync-swap-in")

    def host_buffer(self, size_bytes: int) -> Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu")

    def leave(self, source: Tensor, buffer: Tensor, after: Transfer | None) -> Transfer:
        return self._leaving.submit(self._copy, [source, buffer], after)

    def come(self, buffer: Tensor, target: Tensor, after: Transfer | None) -> Transfer:
        return self._coming.submit(self._copy, [buffer, target], after)

    def wait(self, transfer: Transfer) -> None:
        assert isinstance(transfer, Future)
        transfer.result()

    def finish(self, transfer: Transfer) -> None:
        self.wait(transfer)

    def _copy(self, source_target: list[Tensor], after: Transfer | None) -> None:
        """Empties the list: whoever waits for the copy may count on its tensors' memory being free,
        but the executor lets go of its arguments only afterwards."""
        source, target = source_target
        source_target.clear()
        if after is not None:
            self.wait(after)
        begin = time.monotonic()
        target.copy_(source)
        seconds = source.numel() / self._bytes_per_second
        del source, target
        left = seconds - (time.monotonic() - begin)
        if left > 0:
            time.sleep(left)


class GpuTransfers:
    """Of one NVIDIA GPU: CUDA streams, ordered by events, so that the host never waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._leaving = torch.cuda.Stream(device)
        self._coming = torch.cuda.Stream(device)

    def host_buffer(self, size_bytes: int) -> Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def leave(self, source: Tensor, buffer: Tensor, after: Transfer | None) -> Transfer:
        return self._copy(self._leaving, source, buffer, after)

    def come(self, buffer: Tensor, target: Tensor, after: Transfer | None) -> Transfer:
        return self._copy(self._coming, buffer, target, after)

    def wait(self, transfer: Transfer) -> None:
        assert isinstance(transfer, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(transfer)

    def finish(self, transfer: Transfer) -> None:
        assert isinstance(transfer, torch.cuda.Event)
        transfer.synchronize()

    def _copy(
        self, stream: torch.cuda.Stream, source: Tensor, target: Tensor, after: Transfer | None
    ) -> Transfer:
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            if after is not None:
                self.wait(after)
            target.copy_(source, non_blocking=True)
            ended = torch.cuda.Event()
            ended.record(stream)
        return ended
