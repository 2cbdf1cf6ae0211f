"""Issues the messages of each channel in the plan's order, and lands them.

Whoever makes a message ready (a gradient hook, a landing, `step()`) issues it on the spot, as
torch's DDP does: no thread has to wake first. One landing thread per channel waits for the
oldest operation in flight and runs what follows from its arrival.
"""

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from autosync.runtime.records import Finish, Step


class ChannelQueue:
    """One channel of a plan.

    landed: called on the landing thread when a message has arrived. failed: called with what
        went wrong. Both without the engine's lock; `pump` and `rewind` are called with it.
    """

    def __init__(
        self,
        name: str,
        steps: list[Step],
        landed: Callable[[Step], None],
        failed: Callable[[BaseException, Step], None],
    ):
        self.steps = steps
        self._landed = landed
        self._failed = failed
        self._head = 0
        self._flying: SimpleQueue[tuple[Step, Finish] | None] = SimpleQueue()
        self._thread = Thread(target=self._land, name=f"autosync-{name}", daemon=True)
        self._thread.start()

    def pump(self) -> None:
        """Issue every message whose turn it is. The caller holds the lock."""
        while self._head < len(self.steps) and self.steps[self._head].ready():
            step = self.steps[self._head]
            self._head += 1
            step.started_seconds = time.monotonic()
            try:
                self._flying.put((step, step.start() if step.start else _nothing))
            except RuntimeError as error:  # what torch raises for a broken process group
                self._failed(error, step)
                return

    def rewind(self) -> None:
        """Begin a new iteration. The caller holds the lock; nothing is in flight."""
        self._head = 0

    def close(self) -> None:
        self._flying.put(None)
        self._thread.join()

    def _land(self) -> None:
        while (item := self._flying.get()) is not None:
            step, finish = item
            try:
                finish()
                step.ended_seconds = time.monotonic()
                self._landed(step)
            except Exception as error:  # a thread's boundary: the engine hands it to the script
                self._failed(error, step)
                return


def _nothing() -> None:
    """Finishes a message in which this rank has no part."""
