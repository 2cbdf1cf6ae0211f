"""Keeps a module's buffers (running statistics) in step with rank 0's, as torch's DDP does.

DDP broadcasts them before every forward pass, so a rank that runs one alone hangs. Here they are
broadcast once in every synchronized backward pass, at its end, which every rank reaches. There
they are final, also where a checkpoint ran a part of the forward pass again, and autograd no
longer needs what this pass has saved. A rank may run forward passes of its own meanwhile.

A buffer is written only where it differs from rank 0's: a graph that is still alive may have saved
it. What the script has changed since the broadcast stays as the script left it.

On NCCL they travel on the GPU, at a fixed place in the one order of a plan's messages. Over gloo a
GPU's are brought to host memory and back, by a thread that waits for it while the script goes on.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from autosync.errors import NotSupported
from autosync.runtime.device.streams import HOST, ONE_QUEUE, DeviceEvent, Streams
from autosync.runtime.transport.base import DONE, Wait, Work
from autosync.runtime.transport.nccl import in_place
from autosync.runtime.transport.tensor_exchange import PackedTensors, packed_bytes


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
    """Through host memory. group: of gloo and of its own, so that nothing else waits behind it.
    rank: 0 sends."""

    def __init__(self, model: nn.Module, group: Any, rank: int, streams: Streams = HOST):
        found = [(name, buffer) for name, buffer in model.named_buffers() if buffer.numel()]
        self.group = group
        self.rank = rank
        self.streams = streams
        size_bytes = packed_bytes(buffer for _, buffer in found)
        self._own = self._memory(size_bytes)
        self._first = self._own if rank == 0 else self._memory(size_bytes)
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

    def _memory(self, size_bytes: int) -> Tensor:
        """For the packed values of a rank."""
        like = torch.empty(size_bytes, dtype=torch.uint8, device="cpu")
        return self.streams.host_buffer(like).zero_()

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
        self._leave()

    def in_order(self) -> "OrderedBufferBroadcast | None":
        """What the queue of all messages sends, where it does."""
        return None

    def has_left(self) -> bool:
        """Whether `finish` can be called."""
        return True

    def _leave(self) -> None:
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

    def _send(self, asynchronous: bool = True) -> Any:
        options = dist.BroadcastOptions()
        options.asyncOp = asynchronous
        return self.group.broadcast([self._first], options)

    def finish(self, wait: Wait) -> None:
        """Before the next forward, and before anybody reads the model's state."""
        if self.work is None:
            return
        work, self.work = self.work, None
        sent, self._sent = self._sent, []
        wait(work)
        if torch.equal(self._own, self._first):
            return
        for home, buffer in self._unchanged(sent):
            if not torch.equal(_bits(home.own), _bits(home.first)):
                buffer.detach().copy_(home.first, non_blocking=True)

    def _unchanged(self, sent: list[Tensor]) -> Iterator[tuple[BufferHome, Tensor]]:
        """Those that the script has not changed since they were sent."""
        for home, buffer, version in zip(self.buffers, sent, self._versions, strict=True):
            if home.held.get(home.key) is buffer and buffer._version == version:
                yield home, buffer

    def close(self, seconds: float | None = None) -> None:
        """The group has ended: so does what is under way, arrived or not. seconds: how long that is
        waited for; None: until it has."""
        if isinstance(self.work, Aside):
            with suppress(RuntimeError):
                self.work.wait(None if seconds is None else timedelta(seconds=seconds))
        self.work = None


class OrderedBufferBroadcast(BufferBroadcast):
    """On the GPU by NCCL, where all collectives of a rank have one order: the queue of messages
    sends it at a place of its own (`layout.records.place_of_buffers`). The script's thread waits
    until it is asked for, not until it is done.

    Ranks cannot compare values without waiting for the device, so those of rank 0 are always
    written. A buffer that this rank has not changed since the last time (a mask, or statistics in
    evaluation) keeps its version then, as it keeps its values: a graph may have saved it.

    group: of NCCL and of all ranks, whose messages are in the same order.
    ended_event: behind the broadcast. Its completion waits for nothing: whoever reads does.
    """

    queue = ONE_QUEUE
    title = ("the broadcast", "module buffers")
    waits_for_idle_link = False
    reduces = False
    issued_event: DeviceEvent = None

    def __init__(self, model: nn.Module, group: Any, rank: int, streams: Streams):
        self._posted = False
        self.ended_event: DeviceEvent = None
        self._final: DeviceEvent = None
        self._settled: list[tuple[Tensor, int]] = []
        super().__init__(model, group, rank, streams)

    def _memory(self, size_bytes: int) -> Tensor:
        return torch.zeros(size_bytes, dtype=torch.uint8, device=self.streams.device)

    def in_order(self) -> "OrderedBufferBroadcast | None":
        return self if self.buffers else None

    def has_left(self) -> bool:
        return not self._posted

    def ready(self) -> bool:
        """The backward pass has ended, and the broadcast has not been asked for yet."""
        return self._posted

    def _leave(self) -> None:
        if self.rank == 0:
            with torch.no_grad():
                _copy_all([home.own for home in self.buffers], self._sent)
        self._final = self.streams.record_event()
        self.work = DONE
        self._posted = True

    def launch(self, streams: Streams) -> Work:
        streams.wait_event(self._final)
        in_place(self._send(asynchronous=False))
        self.ended_event = streams.record_event()
        self._posted = False
        return DONE

    def complete(self, completed: Callable[[Any], None]) -> None:
        """Nothing follows."""

    def finish(self, wait: Wait) -> None:
        """Called when it has left."""
        if self.work is None:
            return
        self.work = None
        sent, self._sent = self._sent, []
        self.streams.wait_event(self.ended_event)
        if self.rank > 0:
            settled = {id(buffer): version for buffer, version in self._settled}
            pairs = list(self._unchanged(sent))
            still = [(home, b) for home, b in pairs if settled.get(id(b)) == b._version]
            moved = [(home, b) for home, b in pairs if settled.get(id(b)) != b._version]
            with torch.no_grad():
                with _unsafe_preserve_version_counter(tuple(b for _, b in still)):
                    _copy_all([b.detach() for _, b in still], [home.first for home, _ in still])
                _copy_all([b.detach() for _, b in moved], [home.first for home, _ in moved])
        self._settled = [(buffer, buffer._version) for buffer in sent]


def _copy_all(places: list[Tensor], values: list[Tensor]) -> None:
    """By one call for all of a type."""
    for dtype in dict.fromkeys(place.dtype for place in places):
        chosen = [n for n, place in enumerate(places) if place.dtype == dtype]
        torch._foreach_copy_([places[n] for n in chosen], [values[n] for n in chosen])


def _bits(values: Tensor) -> Tensor:
    """Equal where values are, also where these are NaN."""
    return values.view(-1).view(torch.uint8)
