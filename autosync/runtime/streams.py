"""What comes before what on a device, and who waits for it.

In host memory a call has done its work when it returns. A GPU is only asked for work, stream by
stream: there the script's own stream computes, each queue of messages has a stream on which its
messages leave, and one stream lands them all and runs the updates. What crosses from one stream to
another does so behind a mark (an event), so that no stream waits unless the plan does, and the
script's thread waits until work is asked for, not until it is done.

One landing stream, because what an optimizer allocates on it is then used and freed on it.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Mark = torch.cuda.Event | None
"""A moment of a stream: all that was asked of it before. None in host memory, where that has
happened already."""


class Marked(Protocol):
    """What a stream may have to stay behind."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class Travel:
    """How messages get from a device to the backend.

    threads: each queue has a thread that issues its messages; without, whoever makes a message
        ready issues it on the spot.
    staged: through buffers in host memory, for a backend that moves nothing else.
    one_order: one queue for all messages of fixed size, in the order of `order.issue_order`.
    """

    threads: bool = False
    staged: bool = False
    one_order: bool = False


DIRECT = Travel()
STAGED = Travel(threads=True, staged=True)
ONE_ORDER = Travel(threads=True, one_order=True)


class Streams:
    """Host memory: nothing to order. A GPU's are `GpuStreams`."""

    asynchronous = False

    def __init__(self, travel: Travel = DIRECT):
        self.travel = travel
        self.device = torch.device("cpu")

    def enter_thread(self) -> None:
        """Called first by every thread of the runtime."""

    def launching(self, queue: str) -> AbstractContextManager[object]:
        """Work that is asked for within goes on the stream on which the queue's messages leave."""
        return nullcontext()

    def landing(self) -> AbstractContextManager[object]:
        """Work that is asked for within goes on the stream of arrivals and updates."""
        return nullcontext()

    def packing(self) -> None:
        """A gradient was packed on the current stream: what is packed next is marked behind it."""

    def mark(self) -> Mark:
        """This moment of the current stream."""
        return None

    def wait(self, *marks: Mark) -> None:
        """The current stream goes on behind these; the calling thread goes on at once."""

    def stamp(self, marked: Iterable[Marked]) -> None:
        """What reads these must stay behind all that the current stream was asked for. The caller
        holds the engine's lock, so the last stamp is the latest."""

    def stay_behind(self, marked: Iterable[Marked]) -> None:
        """The current stream goes on when the device has come as far as these are stamped."""

    def finish(self, mark: Mark) -> None:
        """The calling thread waits."""

    def reached(self, mark: Mark) -> bool:
        """Whether the device has come that far."""
        return True

    def seconds(self, mark: Mark, asked_seconds: float) -> float:
        """When that was, on `time.monotonic()`; the calling thread waits for it. asked_seconds:
        when it was asked for, which is when it was in host memory."""
        return asked_seconds

    def synchronize(self) -> None:
        """The calling thread waits for all arrivals and updates."""

    def idle(self) -> bool:
        """Whether all arrivals and updates are done."""
        return True

    def settle(self) -> None:
        """The calling thread waits for all that the current stream was asked for."""

    def lend(self, tensor: Tensor) -> None:
        """The landing stream reads a tensor that its owner may free meanwhile."""

    def host_buffer(self, like: Tensor) -> Tensor:
        """Of the same shape and type, uninitialized, in host memory that the device can reach."""
        return torch.empty(like.shape, dtype=like.dtype, device="cpu")


HOST = Streams()


class GpuStreams(Streams):
    """Of one NVIDIA GPU. timed: marks can be read as seconds."""

    asynchronous = True

    def __init__(self, device: torch.device, travel: Travel, timed: bool = False):
        super().__init__(travel)
        self.device = device
        self._timed = timed
        self._landing = _stream(device)
        self._launching: dict[str, torch.cuda.Stream] = {}
        self._packing: torch.cuda.Stream | None = None
        if timed:
            self._origin = self._new_mark()
            self._origin.synchronize()
            self._origin_seconds = time.monotonic()

    def enter_thread(self) -> None:
        torch.cuda.set_device(self.device)

    def launching(self, queue: str) -> AbstractContextManager[object]:
        if queue not in self._launching:  # only the queue's own thread asks
            self._launching[queue] = _stream(self.device)
        return _on(self._launching[queue])

    def landing(self) -> AbstractContextManager[object]:
        return _on(self._landing)

    def packing(self) -> None:
        current = self._current()
        if self._packing is not None and self._packing != current:
            current.wait_stream(self._packing)
        self._packing = current

    def mark(self) -> Mark:
        return self._new_mark()

    def wait(self, *marks: Mark) -> None:
        stream = self._current()
        for mark in dict.fromkeys(marks):
            if mark is not None:
                stream.wait_event(mark)

    def stamp(self, marked: Iterable[Marked]) -> None:
        mark = self.mark()
        for one in marked:
            one.mark = mark

    def stay_behind(self, marked: Iterable[Marked]) -> None:
        self.wait(*(one.mark for one in marked))

    def finish(self, mark: Mark) -> None:
        if mark is not None:
            mark.synchronize()

    def reached(self, mark: Mark) -> bool:
        return mark is None or bool(mark.query())

    def seconds(self, mark: Mark, asked_seconds: float) -> float:
        assert mark is not None  # every step of a GPU has marks
        mark.synchronize()
        return self._origin_seconds + float(self._origin.elapsed_time(mark)) / 1e3

    def synchronize(self) -> None:
        self._landing.synchronize()

    def idle(self) -> bool:
        return bool(self._landing.query())

    def settle(self) -> None:
        self._current().synchronize()

    def lend(self, tensor: Tensor) -> None:
        parts = (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)
        for part in parts:
            if part.is_cuda:
                part.record_stream(self._landing)

    def host_buffer(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)

    def _current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def _new_mark(self) -> torch.cuda.Event:
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
