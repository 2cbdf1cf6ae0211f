"""Order of work on a device: which stream waits for which, and when a thread waits.

In host memory a call has done its work when it returns, so there is nothing to order. A GPU is
only asked for work, stream by stream. The script's own stream computes and packs gradients, each
queue of messages has a stream on which its messages are issued, and one stream completes all of
them and runs the updates. Work that crosses from one stream to another is ordered by a device
event, so no stream waits unless the plan does, and the script's thread waits until work is asked
for, not until it is done.

There is one completion stream, because what an optimizer allocates on it is then used and freed on
it.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

DeviceEvent = torch.cuda.Event | None
"""A point of a stream: all that was asked of it before. None in host memory, where that has
happened already."""


class Tracked(Protocol):
    """What the work of other streams waits for: `last_event` lies behind the last work on it."""

    last_event: DeviceEvent


@dataclass(frozen=True, slots=True)
class TransportMode:
    """How messages get from a device to the backend.

    threads: each queue has a thread that issues its messages; without, whoever makes a message
        ready issues it on the spot.
    staged: through buffers in host memory, for a backend that moves nothing else.
    one_order: one queue for all messages of fixed size, see `layout/records.py`.
    """

    threads: bool = False
    staged: bool = False
    one_order: bool = False


DIRECT = TransportMode()
STAGED = TransportMode(threads=True, staged=True)
ONE_ORDER = TransportMode(threads=True, one_order=True)

ONE_QUEUE = "all"
"""The queue of all messages of fixed size, where they have one order."""


class Streams:
    """Host memory: nothing to order. A GPU's are `GpuStreams`."""

    asynchronous = False

    def __init__(self, mode: TransportMode = DIRECT):
        self.mode = mode
        self.device = torch.device("cpu")

    def enter_thread(self) -> None:
        """Called first by every thread of the runtime."""

    def issuing(self, queue: str) -> AbstractContextManager[object]:
        """Inside, operations run on the stream that starts the queue's messages."""
        return nullcontext()

    def completing(self) -> AbstractContextManager[object]:
        """Inside, operations run on the stream that completes messages and runs updates."""
        return nullcontext()

    def order_packing(self) -> None:
        """A gradient was packed on the current stream: events of later packing lie behind it."""

    def record_event(self) -> DeviceEvent:
        """This point of the current stream."""
        return None

    def wait_event(self, *events: DeviceEvent) -> None:
        """The current stream waits for these; the calling thread goes on at once."""

    def set_last_event(self, tracked: Iterable[Tracked]) -> None:
        """Who uses these must wait for all that the current stream was asked for. The caller holds
        the engine's lock, so the event set last is the latest."""

    def wait_last_events(self, tracked: Iterable[Tracked]) -> None:
        """The current stream waits for the last work on these."""

    def synchronize_event(self, event: DeviceEvent) -> None:
        """The calling thread waits."""

    def has_reached(self, event: DeviceEvent) -> bool:
        """Whether the device has come that far."""
        return True

    def seconds(self, event: DeviceEvent, asked_seconds: float) -> float:
        """When that was, on `time.monotonic()`; the calling thread waits for it. asked_seconds:
        when it was asked for, which is when it was in host memory."""
        return asked_seconds

    def synchronize(self) -> None:
        """The calling thread waits for all completions and updates."""

    def idle(self) -> bool:
        """Whether all completions and updates are done."""
        return True

    def synchronize_current(self) -> None:
        """The calling thread waits for all that the current stream was asked for."""

    def keep_for_completion(self, tensor: Tensor) -> None:
        """The completion stream reads a tensor that its owner may free meanwhile."""

    def host_buffer(self, like: Tensor) -> Tensor:
        """Of the same shape and type, uninitialized, in host memory that the device can reach."""
        return torch.empty(like.shape, dtype=like.dtype, device="cpu")


HOST = Streams()


class GpuStreams(Streams):
    """Of one NVIDIA GPU. timed: events can be read as seconds."""

    asynchronous = True

    def __init__(self, device: torch.device, mode: TransportMode, timed: bool = False):
        super().__init__(mode)
        self.device = device
        self._timed = timed
        self._completion = _stream(device)
        self._issuing: dict[str, torch.cuda.Stream] = {}
        self._packing: torch.cuda.Stream | None = None
        if timed:
            self._origin = self._new_event()
            self._origin.synchronize()
            self._origin_seconds = time.monotonic()

    def enter_thread(self) -> None:
        torch.cuda.set_device(self.device)

    def issuing(self, queue: str) -> AbstractContextManager[object]:
        if queue not in self._issuing:  # one thread at a time asks for a queue
            self._issuing[queue] = _stream(self.device)
        return _on(self._issuing[queue])

    def completing(self) -> AbstractContextManager[object]:
        return _on(self._completion)

    def order_packing(self) -> None:
        current = self._current()
        if self._packing is not None and self._packing != current:
            current.wait_stream(self._packing)
        self._packing = current

    def record_event(self) -> DeviceEvent:
        return self._new_event()

    def wait_event(self, *events: DeviceEvent) -> None:
        stream = self._current()
        for event in dict.fromkeys(events):
            if event is not None:
                stream.wait_event(event)

    def set_last_event(self, tracked: Iterable[Tracked]) -> None:
        event = self.record_event()
        for one in tracked:
            one.last_event = event

    def wait_last_events(self, tracked: Iterable[Tracked]) -> None:
        self.wait_event(*(one.last_event for one in tracked))

    def synchronize_event(self, event: DeviceEvent) -> None:
        if event is not None:
            event.synchronize()

    def has_reached(self, event: DeviceEvent) -> bool:
        return event is None or bool(event.query())

    def seconds(self, event: DeviceEvent, asked_seconds: float) -> float:
        assert event is not None  # every message of a GPU has events
        event.synchronize()
        return self._origin_seconds + float(self._origin.elapsed_time(event)) / 1e3

    def synchronize(self) -> None:
        self._completion.synchronize()

    def idle(self) -> bool:
        return bool(self._completion.query())

    def synchronize_current(self) -> None:
        self._current().synchronize()

    def keep_for_completion(self, tensor: Tensor) -> None:
        parts = (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)
        for part in parts:
            if part.is_cuda:
                part.record_stream(self._completion)

    def host_buffer(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)

    def _current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def _new_event(self) -> torch.cuda.Event:
        # blocking: a thread that waits for it on the host sleeps and does not spin
        event = torch.cuda.Event(enable_timing=self._timed, blocking=True)
        event.record(self._current())
        return event


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextmanager
def _on(stream: torch.cuda.Stream) -> Iterator[None]:
    with torch.cuda.stream(stream):
        yield


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """What torch asks of the current device is asked of this one within: NCCL's collectives of
    objects go there, and no script need have named one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def streams_for(device: torch.device, backend: str, timed: bool = False) -> Streams:
    """Of the device that a model is on, for messages over this backend (gloo or nccl)."""
    if device.type == "cpu":
        return HOST
    return GpuStreams(device, ONE_ORDER if backend == "nccl" else STAGED, timed)
