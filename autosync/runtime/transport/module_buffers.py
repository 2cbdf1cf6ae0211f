"""Keeps a module's buffers (running statistics) in step with rank 0's, as torch's DDP does.

DDP broadcasts them before every forward pass, so a rank that runs one alone hangs. Here they are
broadcast once in every synchronized backward pass, at its end, which every rank reaches. There
they are final, also where a checkpoint ran a part of the forward pass again, and autograd no
longer needs what this pass has saved. A rank may run forward passes of its own meanwhile.

A buffer is written only where it differs from rank 0's: a graph that is still alive may have saved
it. What the script has changed since the broadcast stays as the script left it.

A GPU's are brought to host memory and back, by a thread that waits for it while the script goes
on, and travel over gloo: beside a plan's NCCL messages they would need a place in their one order.
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
from autosync.runtime.transport.tensor_exchange import PackedTensors, packed_bytes

Wait = Callable[[Any], None]
"""Waits for an operation under way."""


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
    the plan was attached. own, first: this rank's values and rank 0's, among those that travel."""

    name: str
    held: dict[str, Any]
    key: str
    shape: torch.Size
    dtype: torch.dtype
    own: Tensor
    first: Tensor

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
        size_bytes = packed_bytes(buffer for _, buffer in found)
        like = torch.empty(size_bytes, dtype=torch.uint8, device="cpu")
        self._own = streams.host_buffer(like).zero_()
        self._first = self._own if rank == 0 else streams.host_buffer(like).zero_()
        self.buffers: list[BufferHome] = []
        self.work: Any = None
        self._sent: list[Tensor] = []
        self._versions: list[int] = []
        own, first = PackedTensors(self._own), PackedTensors(self._first)
        for name, buffer in found:
            path, _, key = name.rpartition(".")
            module = model.get_submodule(path)
            held = module._buffers if "_buffers" in module.__dict__ else {key: buffer}
            shape, dtype = buffer.shape, buffer.dtype
            places = own.take(shape, dtype), first.take(shape, dtype)
            self.buffers.append(BufferHome(name, held, key, shape, dtype, *places))

    def start(self, wait: Wait) -> None:
        """At the end of a backward pass, on every rank: rank 0's values leave. wait: for those
        before, if need be.

        Raises:
            NotSupported: a buffer is another than the other ranks expect. Nothing leaves then.
        """
        self.finish(wait)
        if not self.buffers:
            return
        self._sent = [home.current() for home in self.buffers]
        self._versions = [buffer._version for buffer in self._sent]
        if not self.streams.mode.threads:
            self._collect()
            self.work = self._send()
            return
        final = self.streams.record_event()
        self.work = Aside(lambda: self._send_behind(final))

    def _send_behind(self, final: DeviceEvent) -> None:
        """final: this iteration has left its values, and taken those of the one before."""
        self.streams.enter_thread()
        with self.streams.issuing("buffers"):
            self.streams.wait_event(final)
            self._collect()
            self.streams.synchronize_event(self.streams.record_event())
        self._send().wait()

    def _collect(self) -> None:
        """This rank's values, in host memory: what rank 0 sends, and what others compare with."""
        for home, buffer in zip(self.buffers, self._sent, strict=True):
            home.own.copy_(buffer.detach(), non_blocking=True)

    def _send(self) -> Any:
        return self.group.broadcast([self._first], dist.BroadcastOptions())

    def finish(self, wait: Wait) -> None:
        """Before the next forward, and before anybody reads the model's state."""
        if self.work is None:
            return
        work, self.work = self.work, None
        sent, self._sent = self._sent, []
        wait(work)
        if torch.equal(self._own, self._first):
            return
        for home, buffer, version in zip(self.buffers, sent, self._versions, strict=True):
            changed = home.held.get(home.key) is not buffer or buffer._version != version
            if not changed and not torch.equal(_bits(home.own), _bits(home.first)):
                buffer.detach().copy_(home.first, non_blocking=True)

    def close(self) -> None:
        """The group has ended: so does what is under way, arrived or not."""
        if isinstance(self.work, Aside):
            with suppress(RuntimeError):
                self.work.wait()
        self.work = None


def _bits(values: Tensor) -> Tensor:
    """Equal where values are, also where these are NaN."""
    return values.view(-1).view(torch.uint8)
