"""Keeps a module's buffers (running statistics) in step with rank 0's, as torch's DDP does.

DDP sends them before every forward; they are final when the forward before has ended, so here
they leave then, and travel beside the backward pass. Where a checkpoint runs a part of the forward
pass again, and changes them once more, they leave again at its end. A GPU's are brought to host
memory and back, by a thread that waits for it while the script goes on.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autosync.errors import NotSupported
from autosync.runtime.device.streams import HOST, DeviceEvent, Streams

Wait = Callable[[Any], None]
"""Waits for an operation under way."""

ALIGNMENT_BYTES = 16
"""Of each buffer's place, so that it can be seen as any type."""


class Aside:
    """A function at work on a thread of its own. `wait` raises what it raised."""

    def __init__(self, function: Callable[[], None]):
        self._function = function
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="autosync-buffers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._function()
        except Exception as error:  # a thread's boundary: `wait` hands it on
            self._error = error

    def wait(self, timeout: timedelta | None = None) -> None:
        self._thread.join(None if timeout is None else timeout.total_seconds())
        if self._thread.is_alive():
            raise RuntimeError("the broadcast of module buffers is under way")
        if self._error is not None:
            raise self._error

    def is_completed(self) -> bool:
        return not self._thread.is_alive()


@dataclass(frozen=True, slots=True)
class BufferHome:
    """Where a module holds a buffer, which it may replace by another tensor, and how it was when
    the plan was attached. place: of its values among those that travel."""

    name: str
    held: dict[str, Any]
    key: str
    shape: torch.Size
    dtype: torch.dtype
    place: Tensor

    def current(self) -> Tensor:
        """Raises NotSupported where it is another than the other ranks expect."""
        found: Any = self.held.get(self.key)
        if isinstance(found, Tensor) and (found.shape, found.dtype) == (self.shape, self.dtype):
            return found
        now = f"{found.dtype}{list(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise NotSupported(
            f"module buffer {self.name!r} is {now} now; when the plan was attached it was "
            f"{self.dtype}{list(self.shape)}.",
            thing=f"module buffer {self.name}",
            value=now,
            remedy="Keep what changes its shape in a plain attribute, and convert the model before "
            "autosync.distribute.",
        )


class BufferBroadcast:
    """group: of its own, so that nothing else waits behind it. rank: 0 sends."""

    def __init__(self, model: nn.Module, group: Any, rank: int, streams: Streams = HOST):
        found = [(name, buffer) for name, buffer in model.named_buffers() if buffer.numel()]
        self.group = group
        self.rank = rank
        self.streams = streams
        size = sum(_aligned(buffer.nbytes) for _, buffer in found)
        self.flat = streams.host_buffer(torch.empty(size, dtype=torch.uint8, device="cpu"))
        self.buffers: list[BufferHome] = []
        self.work: Any = None
        self._sent: list[tuple[int, int]] = []
        start = 0
        for name, buffer in found:
            path, _, key = name.rpartition(".")
            module = model.get_submodule(path)
            held = module._buffers if "_buffers" in module.__dict__ else {key: buffer}
            place = self.flat[start : start + buffer.nbytes]
            self.buffers.append(BufferHome(name, held, key, buffer.shape, buffer.dtype, place))
            start += _aligned(buffer.nbytes)

    def start(self, wait: Wait) -> None:
        """After a training forward: rank 0's values leave. wait: for those before, if need be."""
        self.finish(wait)
        if not self.buffers:
            return
        self._sent = self._versions()  # refused on every rank, before anything leaves
        if not self.streams.mode.threads:
            self._collect()
            self.work = self._send()
            return
        final = self.streams.record_event()
        self.work = Aside(lambda: self._send_behind(final))

    def changed(self) -> bool:
        """Whether the script has changed buffers since they left; ranks that run the same program
        agree."""
        return bool(self._sent) and self._versions() != self._sent

    def _versions(self) -> list[tuple[int, int]]:
        found = [home.current() for home in self.buffers]
        return [(id(buffer), buffer._version) for buffer in found]

    def _send_behind(self, final: DeviceEvent) -> None:
        """final: this forward pass has left its values, and taken those of the one before."""
        self.streams.enter_thread()
        with self.streams.issuing("buffers"):
            self.streams.wait_event(final)
            self._collect()
            self.streams.synchronize_event(self.streams.record_event())
        self._send().wait()

    def _collect(self) -> None:
        if self.rank == 0:
            for home in self.buffers:
                values = home.current().detach().contiguous().view(-1).view(torch.uint8)
                home.place.copy_(values, non_blocking=True)

    def _send(self) -> Any:
        return self.group.broadcast([self.flat], dist.BroadcastOptions())

    def finish(self, wait: Wait) -> None:
        """Before the next forward, and before anybody reads the model's state."""
        if self.work is None:
            return
        work, self.work = self.work, None
        self._sent = []
        wait(work)
        if self.rank != 0:
            for home in self.buffers:
                values = home.place.view(home.dtype).view(home.shape)
                home.current().detach().copy_(values, non_blocking=True)

    def close(self) -> None:
        """The group has ended: so does what is under way, arrived or not."""
        if isinstance(self.work, Aside):
            with suppress(RuntimeError):
                self.work.wait()
        self.work = None


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
