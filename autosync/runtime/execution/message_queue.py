"""Issues the messages of each queue in their order, and completes them.

Whoever makes a message ready (a gradient hook, a completed message, `step()`) issues it on the
spot, as torch's DDP does: no thread has to wake first. Only where issuing may wait for a device (a
copy to host memory, a length that the device knows) a thread of the queue's own does it. One
completion thread per queue waits for the oldest operation in flight and runs what follows from it.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

from autosync.runtime.device.streams import ONE_QUEUE, DeviceEvent, Streams
from autosync.runtime.execution.completion import Completion
from autosync.runtime.execution.monitor import LOOK_SECONDS, Monitor
from autosync.runtime.layout.records import Bucket, MessageRecord
from autosync.runtime.transport.base import Work


class Queued(Protocol):
    """What a queue issues when its turn has come: a message of the plan, or the broadcast of module
    buffers.

    queue: by name. title: the operation, and of what. waits_for_idle_link, reduces: see `LinkUse`.
    issued_event: on a GPU, what its completion waits for. ended_event: behind that.
    """

    queue: str
    issued_event: DeviceEvent
    ended_event: DeviceEvent

    @property
    def title(self) -> tuple[str, str]: ...
    @property
    def waits_for_idle_link(self) -> bool: ...
    @property
    def reduces(self) -> bool: ...

    def ready(self) -> bool:
        """Whether it may leave; called with the lock held."""

    def launch(self, streams: Streams) -> Work:
        """Ask for it, on the current stream; returns the operation to wait for."""

    def complete(self, completed: Callable[[MessageRecord], None]) -> None:
        """The operation has ended. completed: what follows for a message."""


class MessageQueues:
    """The queues of one plan. `completion` says what follows from a completed message.

    patience_seconds: how long a device may be at work on a message that the host has completed.
    """

    def __init__(
        self, completion: Completion, monitor: Monitor, streams: Streams, patience_seconds: float
    ):
        self.streams = streams
        self.patience_seconds = patience_seconds
        self.link = LinkUse()
        self._completion = completion
        self._monitor = monitor
        self._lock = monitor.condition
        self._queues: list[_Queue] = []

    def start(self, ordered: Sequence[Queued]) -> None:
        """Start the threads of every queue. ordered: all, in issue order. Queues that wait for an
        idle link come last: what else is ready leaves before."""
        for queued in ordered:
            self.link.add(queued)
        waiting = {queued.queue: queued.waits_for_idle_link for queued in ordered}
        for name in sorted(waiting, key=lambda name: waiting[name]):
            of_queue = [queued for queued in ordered if queued.queue == name]
            self._queues.append(_Queue(name, of_queue, self))

    def close(self, seconds: float | None = None) -> None:
        """Stop every thread. seconds: how long messages under way are waited for; None: until each
        has ended."""
        deadline = None if seconds is None else time.monotonic() + seconds
        for queue in self._queues:
            queue.close(deadline)
        self._queues.clear()

    def rewind(self) -> None:
        """Begin a new iteration. The caller holds the lock; nothing is in flight."""
        self.link.rewind()
        for queue in self._queues:
            queue.head = 0

    def issue_ready(self) -> None:
        """Issue all that are ready and the next of their queue. The caller holds the lock."""
        for queue in self._queues:
            queue.issue_ready()

    def update_bucket(self, bucket: Bucket) -> None:
        """Run the flat update of a bucket that the caller has claimed; the message that carries
        the new values leaves."""
        with self.streams.completing():
            self._completion.update_bucket(bucket)
            with self._lock:
                self.issue_ready()

    def completed(self, record: MessageRecord) -> None:
        """A message's operation has finished: the messages behind it leave, then updates run.
        Called by a completion thread, where the current stream is the stream of updates."""
        self._completion.unpack(record)
        with self._lock:
            bucket, variables = self._completion.count(record)
            self.link.decrement(record)
            self.issue_ready()
        with self._monitor.updating():
            if bucket is not None:
                self.update_bucket(bucket)
            if variables:
                self._completion.update_deferred(variables)

    def failed(self, error: BaseException, queued: Queued) -> None:
        """It cannot arrive."""
        operation, thing = queued.title
        self._monitor.fail(f"{operation} of {thing} failed: {error}", thing, operation)


class _Queue:
    """One queue, in issue order. head: index of the next one to issue. `issue_ready` is called with
    the lock held."""

    def __init__(self, name: str, ordered: list[Queued], queues: MessageQueues):
        streams = queues.streams
        self.head = 0
        self._name = name
        self._ordered = ordered
        self._streams = streams
        self._link = queues.link
        self._completed = queues.completed
        self._failed = queues.failed
        self._watchdog: Watchdog | None = None
        if streams.asynchronous:
            self._watchdog = Watchdog(streams, queues.patience_seconds)
        self._to_issue: SimpleQueue[Queued | None] = SimpleQueue()
        self._in_flight: SimpleQueue[tuple[Queued, Work] | None] = SimpleQueue()
        self._completing = Thread(target=self._complete_all, name=f"autosync-{name}", daemon=True)
        self._completing.start()
        self._issuing: Thread | None = None
        if streams.mode.threads and name != ONE_QUEUE:
            title = f"autosync-issue-{name}"
            self._issuing = Thread(target=self._issue_all, name=title, daemon=True)
            self._issuing.start()

    def issue_ready(self) -> None:
        """Issue from the head of the queue, as far as they are ready and may leave."""
        while self.head < len(self._ordered):
            queued = self._ordered[self.head]
            if not (queued.ready() and self._link.may_leave(queued)):
                return
            self.head += 1
            self._link.increment(queued)
            if self._issuing is not None:
                self._to_issue.put(queued)
                continue
            try:
                self._issue(queued)
            except RuntimeError as error:  # what torch raises for a broken process group
                self._failed(error, queued)
                return

    def close(self, deadline: float | None) -> None:
        if self._issuing is not None:
            self._to_issue.put(None)
            _join(self._issuing, deadline)  # before the thread that completes what it issued
        self._in_flight.put(None)
        _join(self._completing, deadline)

    def _issue(self, queued: Queued) -> None:
        with self._streams.issuing(self._name):
            work = queued.launch(self._streams)
        self._in_flight.put((queued, work))

    def _issue_all(self) -> None:
        self._streams.enter_thread()
        while (queued := self._to_issue.get()) is not None:
            try:
                self._issue(queued)
            except Exception as error:  # a thread's boundary: the engine hands it to the script
                self._failed(error, queued)
                return

    def _complete_all(self) -> None:
        streams = self._streams
        streams.enter_thread()
        while (oldest := self._oldest()) is not None:
            queued, work = oldest
            try:
                with streams.completing():
                    streams.wait_event(queued.issued_event)
                    work.wait()
                    del work, oldest  # the operation holds its group's connections
                    queued.complete(self._completed)
                if self._watchdog is not None:
                    self._watchdog.add(queued, queued.ended_event)
            except Exception as error:  # a thread's boundary: the engine hands it to the script
                self._failed(error, queued)
                return

    def _oldest(self) -> tuple[Queued, Work] | None:
        if self._watchdog is None:
            return self._in_flight.get()
        while True:
            try:
                return self._in_flight.get(timeout=LOOK_SECONDS)
            except Empty:
                if (lost := self._watchdog.lost()) is not None:
                    queued, error = lost
                    self._failed(error, queued)
                    return None


def _join(thread: Thread, deadline: float | None) -> None:
    """deadline: on `time.monotonic()`; None: until it has ended."""
    thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))


class LinkUse:
    """Decides when to start all-gathers that the schedule defers until the link is idle: counts the
    messages in flight, reductions and deferred ones. Every method is called with the monitor's lock
    held.

    Each rank decides by itself, and none waits for ever: a reduction waits for gradients and for
    other reductions only, so every rank completes its own, whatever is deferred. After the last one
    nothing is deferred any more.
    """

    def __init__(self) -> None:
        self._reductions = 0
        self.rewind()

    def add(self, queued: Queued) -> None:
        """Before any has left."""
        self._reductions += queued.reduces
        self.rewind()

    def rewind(self) -> None:
        """A new iteration begins; nothing is in flight."""
        self._missing = self._reductions
        self._reductions_in_flight = 0
        self._deferred_in_flight = 0

    def may_leave(self, queued: Queued) -> bool:
        """Whether a message whose turn has come leaves now: a deferred one, while neither a
        reduction nor another deferred one is in flight, or all reductions have completed."""
        if not queued.waits_for_idle_link or not self._missing:
            return True
        return not (self._reductions_in_flight or self._deferred_in_flight)

    def increment(self, queued: Queued, change: int = 1) -> None:
        """It leaves."""
        if queued.waits_for_idle_link:
            self._deferred_in_flight += change
        elif queued.reduces:
            self._reductions_in_flight += change

    def decrement(self, record: MessageRecord) -> None:
        """The message has completed."""
        self.increment(record, -1)
        self._missing -= record.reduces


class Watchdog:
    """Finds messages that the host has completed and their device never reaches.

    A collective that is asked of a GPU fails without a word when a peer is gone: the GPU waits in
    it, and later so does the script, in whatever reads a value. So the completion thread looks now
    and then whether the oldest message is done. patience_seconds: without any progress, until a
    message counts as lost.
    """

    def __init__(self, streams: Streams, patience_seconds: float):
        self._streams = streams
        self._patience_seconds = patience_seconds
        self._on_device: deque[tuple[Queued, DeviceEvent]] = deque()
        self._progress_seconds = 0.0

    def add(self, queued: Queued, ended_event: DeviceEvent) -> None:
        """It has completed on the host."""
        if not self._on_device:
            self._progress_seconds = time.monotonic()
        self._on_device.append((queued, ended_event))
        self._forget_done()

    def lost(self) -> tuple[Queued, Exception] | None:
        """The message that has been waited for too long, or on which the device failed, and why."""
        if not self._on_device:
            return None
        try:
            self._forget_done()
        except RuntimeError as error:
            return self._on_device[0][0], error
        waited_seconds = time.monotonic() - self._progress_seconds
        if self._on_device and waited_seconds > self._patience_seconds:
            return self._on_device[0][0], TimeoutError("the device still waits for it")
        return None

    def _forget_done(self) -> None:
        while self._on_device and self._streams.has_reached(self._on_device[0][1]):
            self._on_device.popleft()
            self._progress_seconds = time.monotonic()
