"""Issues the messages of each queue in their order, and lands them.

In host memory whoever makes a message ready (a gradient hook, a landing, `step()`) issues it on
the spot, as torch's DDP does: no thread has to wake first. Where issuing may wait for a device, or
asks it for work, a thread of the queue's own does it. One landing thread per queue waits for the
oldest operation in flight and runs what follows from its arrival.
"""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

from autosync.runtime.layout.records import Finish, MessageRecord
from autosync.runtime.streams import Streams
from autosync.runtime.transport.watchdog import LOOK_SECONDS, Watchdog


class MessageQueue:
    """One queue of messages, in issue order.

    landed: called on the landing thread when a message has arrived; there the current stream is
        that of arrivals. failed: called with what went wrong. Both without the engine's lock;
        `pump` and `rewind` are called with it.
    patience_seconds: how long a device may be at work on a message that the host has landed.
    """

    def __init__(
        self,
        name: str,
        steps: list[MessageRecord],
        streams: Streams,
        patience_seconds: float,
        landed: Callable[[MessageRecord], None],
        failed: Callable[[BaseException, MessageRecord], None],
    ):
        self.name = name
        self.steps = steps
        self._streams = streams
        self._landed = landed
        self._failed = failed
        self._head = 0
        self._turn: SimpleQueue[MessageRecord | None] = SimpleQueue()
        self._flying: SimpleQueue[tuple[MessageRecord, Finish] | None] = SimpleQueue()
        self._overdue = Watchdog(streams, patience_seconds) if streams.asynchronous else None
        self._landing = Thread(target=self._land, name=f"autosync-{name}", daemon=True)
        self._landing.start()
        self._launching: Thread | None = None
        if streams.travel.threads:
            title = f"autosync-issue-{name}"
            self._launching = Thread(target=self._launch, name=title, daemon=True)
            self._launching.start()

    def pump(self) -> None:
        """Issue every message whose turn it is. The caller holds the lock."""
        while self._head < len(self.steps) and self.steps[self._head].ready():
            step = self.steps[self._head]
            self._head += 1
            if self._streams.travel.threads:
                self._turn.put(step)
                continue
            try:
                self._issue(step)
            except RuntimeError as error:  # what torch raises for a broken process group
                self._failed(error, step)
                return

    def rewind(self) -> None:
        """Begin a new iteration. The caller holds the lock; nothing is in flight."""
        self._head = 0

    def close(self) -> None:
        if self._launching is not None:
            self._turn.put(None)
            self._launching.join()  # before who lands what it issued
        self._flying.put(None)
        self._landing.join()

    def _issue(self, step: MessageRecord) -> None:
        step.started_mark = self._streams.mark()
        step.started_seconds = time.monotonic()
        finish = step.start() if step.start else _nothing
        step.issued_mark = self._streams.mark()
        self._flying.put((step, finish))

    def _launch(self) -> None:
        streams = self._streams
        streams.enter_thread()
        while (step := self._turn.get()) is not None:
            try:
                with streams.launching(self.name):
                    streams.wait(step.ready_mark())
                    self._issue(step)
            except Exception as error:  # a thread's boundary: the engine hands it to the script
                self._failed(error, step)
                return

    def _land(self) -> None:
        streams = self._streams
        streams.enter_thread()
        while (item := self._next()) is not None:
            step, finish = item
            try:
                with streams.landing():
                    streams.wait(step.issued_mark)
                    finish()
                    step.ended_seconds = time.monotonic()
                    self._landed(step)
                if self._overdue is not None:
                    self._overdue.add(step)
            except Exception as error:  # a thread's boundary: the engine hands it to the script
                self._failed(error, step)
                return

    def _next(self) -> tuple[MessageRecord, Finish] | None:
        if self._overdue is None:
            return self._flying.get()
        while True:
            try:
                return self._flying.get(timeout=LOOK_SECONDS)
            except Empty:
                if (overdue := self._overdue.lost()) is not None:
                    self._failed(overdue.error, overdue.step)
                    return None


def _nothing() -> None:
    """Finishes a message in which this rank has no part."""
