"""A device whose memory is too small, and copies to its host: an NVIDIA GPU, or an arena that
emulates one in the CPU's memory.

Each direction of transfers has a stream of its own: copies of a direction follow each other, those
of both run at once, and compute waits for neither. On a GPU a stream is CUDA's and host memory is
pinned; beside an arena it is a thread.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from autosync.errors import NotSupported
from autosync.extensions.offload.arena import Arena
from autosync.runtime.hooks.torch_compile import is_compiled_in_place

Transfer = Future[None] | torch.cuda.Event
"""A copy that was asked for; its end can be waited for."""


class GpuMemory:
    """Of one NVIDIA GPU, as `Arena`: what tensors of this process have asked of torch's
    allocator."""

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

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def _requested(self, which: str) -> int:
        return int(torch.cuda.memory_stats(self.device).get(f"requested_bytes.all.{which}", 0))


class ThreadTransfers:
    """Beside an arena: a thread for each direction, no faster than the stated rate. They end when
    nobody holds this any more. All tensors are flat bytes."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._leaving = ThreadPoolExecutor(1, "autosync-swap-out")
        self._coming = ThreadPoolExecutor(1, "autosync-swap-in")

    def host_buffer(self, size_bytes: int) -> Tensor:
        """Memory of the host that copies are fast to."""
        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu")

    def leave(self, source: Tensor, buffer: Tensor, after: Transfer | None) -> Transfer:
        """Copy to the host what the script's work so far has written, and not before `after`. The
        caller holds the source until it has waited."""
        return self._leaving.submit(self._copy, [source, buffer], after)

    def come(self, buffer: Tensor, target: Tensor, after: Transfer | None) -> Transfer:
        """Copy to the device, after the script's work so far and not before `after`."""
        return self._coming.submit(self._copy, [buffer, target], after)

    def wait(self, transfer: Transfer) -> None:
        """The script's work from here on runs after it."""
        assert isinstance(transfer, Future)
        transfer.result()

    def finish(self, transfer: Transfer) -> None:
        """The calling thread waits."""
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
    """Of one NVIDIA GPU, as `ThreadTransfers`: CUDA streams, ordered by events, so that the host
    never waits."""

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


@dataclass(frozen=True, slots=True)
class SwapDevice:
    """free: host buffers that no tensor waits in, by their bytes, each with the last transfer that
    used it. Passes are alike, so a buffer fits again, until a pass is recorded anew."""

    memory: Arena | GpuMemory
    transfers: ThreadTransfers | GpuTransfers
    free: defaultdict[int, list[tuple[Tensor, Transfer | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def take_buffer(self, size_bytes: int) -> tuple[Tensor, Transfer | None]:
        free = self.free[size_bytes]
        return free.pop() if free else (self.transfers.host_buffer(size_bytes), None)


def check_swappable(model: nn.Module, given: nn.Module) -> None:
    """given: what the script has, a compiled form of the model perhaps.

    Raises:
        NotSupported: it is compiled, or in host memory and no arena emulates a device.
    """
    if given is not model or is_compiled_in_place(model):
        raise NotSupported(
            "the model is compiled, and what a compiled forward pass saves cannot be swapped.",
            thing="swap.budget_bytes",
            remedy="Train the plain model, or use a strategy without swap.",
        )
    _memory_of(model)


def swap_device_of(model: nn.Module) -> SwapDevice:
    """Raises NotSupported where the model is in host memory and no arena emulates a device."""
    memory = _memory_of(model)
    if isinstance(memory, Arena):
        return SwapDevice(memory, ThreadTransfers(memory.bytes_per_second))
    return SwapDevice(memory, GpuTransfers(memory.device))


def _memory_of(model: nn.Module) -> Arena | GpuMemory:
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    if device.type == "cuda":
        return GpuMemory(device)
    if Arena.entered:
        return Arena.entered[-1]
    raise NotSupported(
        f"tensors are swapped from an NVIDIA GPU to host memory, and the model is on {device}.",
        thing="swap.budget_bytes",
        value=str(device),
        remedy="Move the model to a GPU, use a strategy without swap, or emulate a device: train "
        "within `autosync.extensions.offload.arena.Arena(bytes)`.",
    )
