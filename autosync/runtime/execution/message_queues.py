"""Issues the messages of each queue in their order, and lands them.

Whoever makes a message ready (a gradient hook, a landing, `step()`) issues it on the spot, as
torch's DDP does: no thread has to wake first. Only where issuing may wait for a device (a copy to
host memory, a length that the device knows) a thread of the queue's own does it. One landing thread
per queue waits for the oldest operation in flight and runs what follows from its landing.
"""

import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import Thread

from autosync.runtime.device.streams import Streams
from autosync.runtime.execution.completion import Completion
from autosync.runtime.execution.idle_wire import IdleWire, waits_for_idle_wire
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.execution.watchdog import LOOK_SECONDS, Watchdog
from autosync.runtime.layout.records import ONE_QUEUE, Bucket, MessageRecord
from autosync.runtime.transport.base import DONE, Work


class MessageQueue:
    """One queue of messages, in issue order.

    landed: called on the landing thread when a message's operation has finished; there the current
        stream is the landing stream. failed: called with what went wrong. Both without the lock;
        `issue_ready` and `rewind` are called with it.
    idle: says when messages leave that wait for an idle wire.
    patience_seconds: how long a device may be at work on a message that the host has landed.
    """

    def __init__(
        self,
        name: str,
        records: list[MessageRecord],
        streams: Streams,
        idle: IdleWire,
        patience_seconds: float,
        landed: Callable[[MessageRecord], None],
        failed: Callable[[BaseException, MessageRecord], None],
    ):
        self.name = name
        self.records = records
        self._streams = streams
        self._idle = idle
        self._landed = landed
        self._failed = failed
        self._head = 0
        self._to_issue: SimpleQueue[MessageRecord | None] = SimpleQueue()
        self._in_flight: SimpleQueue[tuple[MessageRecord, Work] | None] = SimpleQueue()
        self._watchdog = Watchdog(streams, patience_seconds) if streams.asynchronous else None
        self._landing = Thread(target=self._land_all, name=f"autosync-{name}", daemon=True)
        self._landing.start()
        self._issuing: Thread | None = None
        if streams.mode.threads and name != ONE_QUEUE:
            title = f"autosync-issue-{name}"
            self._issuing = Thread(target=self._issue_all, name=title, daemon=True)
            self._issuing.start()

    def issue_ready(self) -> None:
        """Issue messages from the head of the queue, as far as they are ready and may leave."""
        while self._head < len(self.records):
            record = self.records[self._head]
            if not (record.ready() and self._idle.may_leave(record)):
                return
            self._head += 1
            self._idle.left(record)
            if self._issuing is not None:
                self._to_issue.put(record)
                continue
            try:
                self._issue(record)
            except RuntimeError as error:  # what torch raises for a broken process group
                self._failed(error, record)
                return

    def rewind(self) -> None:
        """Begin a new iteration; nothing is in flight."""
        self._head = 0

    def close(self) -> None:
        if self._issuing is not None:
            self._to_issue.put(None)
            self._issuing.join()  # before the thread that lands what it issued
        self._in_flight.put(None)
        self._landing.join()

    def _issue(self, record: MessageRecord) -> None:
        streams = self._streams
        with streams.issuing(self.name):
            streams.wait_event(record.ready_event())
            record.started_event = streams.record_event()
            record.started_seconds = time.monotonic()
            work = record.start() if record.start else DONE
            record.issued_event = streams.record_event()
        self._in_flight.put((record, work))

    def _issue_all(self) -> None:
        streams = self._streams
        streams.enter_thread()
        while (record := self._to_issue.get()) is not None:
            try:
                self._issue(record)
            except Exception as error:  # a thread's boundary: the engine hands it to the script
                self._failed(error, record)
                return

    def _land_all(self) -> None:
        streams = self._streams
        streams.enter_thread()
        while (oldest := self._oldest()) is not None:
            record, work = oldest
            try:
                with streams.landing():
                    streams.wait_event(record.issued_event)
                    work.wait()
                    del work, oldest  # the operation holds its group's connections
                    record.ended_seconds = time.monotonic()
                    self._landed(record)
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
                    self._failed(lost.error, lost.record)
                    return None


class MessageQueues:
    """The queues of one plan. `completion` says what follows from a message that has landed.

    patience_seconds: see `MessageQueue`.
    """

    def __init__(
        self, completion: Completion, monitor: Monitor, streams: Streams, patience_seconds: float
    ):
        self._completion = completion
        self._monitor = monitor
        self._lock = monitor.condition
        self._streams = streams
        self._patience_seconds = patience_seconds
        self._idle = IdleWire()
        self._queues: list[MessageQueue] = []

    def start(self, ordered: Iterable[MessageRecord]) -> None:
        """Start the threads of every queue. ordered: all messages, in issue order. Queues that wait
        for an idle wire come last: what else is ready leaves before."""
        records = list(ordered)
        for record in records:
            self._idle.add(record)
        waiting = {record.queue: waits_for_idle_wire(record) for record in records}
        for name in sorted(waiting, key=lambda name: waiting[name]):
            of_queue = [record for record in records if record.queue == name]
            self._queues.append(
                MessageQueue(
                    name,
                    of_queue,
                    self._streams,
                    self._idle,
                    self._patience_seconds,
                    self._landed,
                    self._failed,
                )
            )

    def close(self) -> None:
        """Stop every thread."""
        for queue in self._queues:
            queue.close()
        self._queues.clear()

    def rewind(self) -> None:
        """Begin a new iteration. The caller holds the lock; nothing is in flight."""
        self._idle.rewind()
        for queue in self._queues:
            queue.rewind()

    def issue_ready(self) -> None:
        """Issue all that are ready and the next of their queue. The caller holds the lock."""
        for queue in self._queues:
            queue.issue_ready()

    def update_bucket(self, bucket: Bucket) -> None:
        """Run the flat update of a bucket that the caller has claimed; the message that carries
        the new values leaves."""
        with self._streams.landing():
            self._completion.update_bucket(bucket)
            with self._lock:
                self.issue_ready()

    def _landed(self, record: MessageRecord) -> None:
        """What follows from a landing: the messages behind it leave, then updates run."""
        self._completion.unpack(record)
        with self._lock:
            due = self._completion.land(record)
            self._idle.landed(record)
            self.issue_ready()
        with self._monitor.updating():
            if due.bucket is not None:
                self.update_bucket(due.bucket)
            if due.variables:
                self._completion.update_deferred(due.variables)

    def _failed(self, error: BaseException, record: MessageRecord) -> None:
        """A message cannot arrive."""
        name = record.message.operation.name
        what = f"{name} of message {record.index} failed: {error}"
        self._monitor.fail(what, f"message {record.index}", name)
