"""Issues the messages of each queue in their order, and completes them.

Whoever makes a message ready (a gradient hook, a completed message, `step()`) issues it on the
spot, as torch's DDP does: no thread has to wake first. Only where issuing may wait for a device (a
copy to host memory, a length that the device knows) a thread of the queue's own does it. One
completion thread per queue waits for the oldest operation in flight and runs what follows from it.
"""

import time
from collections import deque
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from threading import Thread

from autosync.codes import Channel
from autosync.runtime.device.streams import DeviceEvent, Streams
from autosync.runtime.execution.completion import Completion
from autosync.runtime.execution.monitor import LOOK_SECONDS, Monitor
from autosync.runtime.layout.records import ONE_QUEUE, Bucket, MessageRecord
from autosync.runtime.transport.base import DONE, Work


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

    def start(self, ordered: Iterable[MessageRecord]) -> None:
        """Start the threads of every queue. ordered: all messages, in issue order. Queues that wait
        for an idle link come last: what else is ready leaves before."""
        records = list(ordered)
        for record in records:
            self.link.add(record)
        waiting = {record.queue: _waits_for_idle_link(record) for record in records}
        for name in sorted(waiting, key=lambda name: waiting[name]):
            of_queue = [record for record in records if record.queue == name]
            self._queues.append(_Queue(name, of_queue, self))

    def close(self) -> None:
        """Stop every thread."""
        for queue in self._queues:
            queue.close()
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

    def failed(self, error: BaseException, record: MessageRecord) -> None:
        """A message cannot arrive."""
        name = record.message.operation.name
        what = f"{name} of message {record.index} failed: {error}"
        self._monitor.fail(what, f"message {record.index}", name)


class _Queue:
    """One queue of messages, in issue order. head: index of the next one to issue. `issue_ready` is
    called with the lock held."""

    def __init__(self, name: str, records: list[MessageRecord], queues: MessageQueues):
        streams = queues.streams
        self.head = 0
        self._name = name
        self._records = records
        self._streams = streams
        self._link = queues.link
        self._completed = queues.completed
        self._failed = queues.failed
        self._watchdog: Watchdog | None = None
        if streams.asynchronous:
            self._watchdog = Watchdog(streams, queues.patience_seconds)
        self._to_issue: SimpleQueue[MessageRecord | None] = SimpleQueue()
        self._in_flight: SimpleQueue[tuple[MessageRecord, Work] | None] = SimpleQueue()
        self._completing = Thread(target=self._complete_all, name=f"autosync-{name}", daemon=True)
        self._completing.start()
        self._issuing: Thread | None = None
        if streams.mode.threads and name != ONE_QUEUE:
            title = f"autosync-issue-{name}"
            self._issuing = Thread(target=self._issue_all, name=title, daemon=True)
            self._issuing.start()

    def issue_ready(self) -> None:
        """Issue messages from the head of the queue, as far as they are ready and may leave."""
        while self.head < len(self._records):
            record = self._records[self.head]
            if not (record.ready() and self._link.may_leave(record)):
                return
            self.head += 1
            self._link.increment(record)
            if self._issuing is not None:
                self._to_issue.put(record)
                continue
            try:
                self._issue(record)
            except RuntimeError as error:  # what torch raises for a broken process group
                self._failed(error, record)
                return

    def close(self) -> None:
        if self._issuing is not None:
            self._to_issue.put(None)
            self._issuing.join()  # before the thread that completes what it issued
        self._in_flight.put(None)
        self._completing.join()

    def _issue(self, record: MessageRecord) -> None:
        streams = self._streams
        with streams.issuing(self._name):
            streams.wait_event(record.ready_event())
            record.started_event = streams.record_event()
            record.started_seconds = time.monotonic()
            work = record.start() if record.start else DONE
            record.issued_event = streams.record_event()
        self._in_flight.put((record, work))

    def _issue_all(self) -> None:
        self._streams.enter_thread()
        while (record := self._to_issue.get()) is not None:
            try:
                self._issue(record)
            except Exception as error:  # a thread's boundary: the engine hands it to the script
                self._failed(error, record)
                return

    def _complete_all(self) -> None:
        streams = self._streams
        streams.enter_thread()
        while (oldest := self._oldest()) is not None:
            record, work = oldest
            try:
                with streams.completing():
                    streams.wait_event(record.issued_event)
                    work.wait()
                    del work, oldest  # the operation holds its group's connections
                    record.ended_seconds = time.monotonic()
                    self._completed(record)
                if self._watchdog is not None:
                    self._watchdog.add(record)
            except Exception as error:  # a thread's boundary: the engine hands it to the script
                self._failed(error, record)
                return

    def _oldest(self) -> tuple[MessageRecord, Work] | None:
        if self._watchdog is None:
            return self._in_flight.get()
        while True:
            try:
                return self._in_flight.get(timeout=LOOK_SECONDS)
            except Empty:
                if (lost := self._watchdog.lost()) is not None:
                    record, error = lost
                    self._failed(error, record)
                    return None


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

    def add(self, record: MessageRecord) -> None:
        """A message of the plan, before any has left."""
        self._reductions += _is_reduction(record)
        self.rewind()

    def rewind(self) -> None:
        """A new iteration begins; nothing is in flight."""
        self._missing = self._reductions
        self._reductions_in_flight = 0
        self._deferred_in_flight = 0

    def may_leave(self, record: MessageRecord) -> bool:
        """Whether a message whose turn has come leaves now: a deferred one, while neither a
        reduction nor another deferred one is in flight, or all reductions have completed."""
        if not _waits_for_idle_link(record) or not self._missing:
            return True
        return not (self._reductions_in_flight or self._deferred_in_flight)

    def increment(self, record: MessageRecord, change: int = 1) -> None:
        """The message leaves."""
        if _waits_for_idle_link(record):
            self._deferred_in_flight += change
        elif _is_reduction(record):
            self._reductions_in_flight += change

    def decrement(self, record: MessageRecord) -> None:
        """The message has completed."""
        self.increment(record, -1)
        self._missing -= _is_reduction(record)


def _waits_for_idle_link(record: MessageRecord) -> bool:
    """Not where one queue holds everything: its order decides, for a message that is deferred would
    hold up the reductions behind it."""
    return record.message.channel == Channel.GATHER and record.queue != ONE_QUEUE


def _is_reduction(record: MessageRecord) -> bool:
    """It waits neither for an idle link nor for `step()`, which each rank reaches when it may."""
    return not (_waits_for_idle_link(record) or record.message.carries_values)


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
        self._on_device: deque[tuple[MessageRecord, DeviceEvent]] = deque()
        self._progress_seconds = 0.0

    def add(self, record: MessageRecord) -> None:
        """A message has completed on the host."""
        if not self._on_device:
            self._progress_seconds = time.monotonic()
        self._on_device.append((record, record.ended_event))
        self._forget_done()

    def lost(self) -> tuple[MessageRecord, Exception] | None:
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
