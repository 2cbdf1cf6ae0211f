"""Messages that the host has landed and their device never reaches.

A collective that is asked of a GPU fails without a word when a peer is gone: the GPU waits in it,
and later so does the script, in whatever reads a value. So the landing thread looks now and then
whether the oldest message is done.
"""

import time
from collections import deque
from dataclasses import dataclass

from autosync.runtime.layout.records import MessageRecord
from autosync.runtime.streams import Mark, Streams

LOOK_SECONDS = 1.0
"""How often, while nothing else lands."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A message that cannot arrive, and why."""

    step: MessageRecord
    error: Exception


class Watchdog:
    """patience_seconds: without any progress, until a message counts as lost."""

    def __init__(self, streams: Streams, patience_seconds: float):
        self._streams = streams
        self._patience_seconds = patience_seconds
        self._under_way: deque[tuple[MessageRecord, Mark]] = deque()
        self._progress_seconds = 0.0

    def add(self, step: MessageRecord) -> None:
        """A message has landed on the host."""
        if not self._under_way:
            self._progress_seconds = time.monotonic()
        self._under_way.append((step, step.ended_mark))
        self._forget_done()

    def lost(self) -> Lost | None:
        """The message that has been waited for too long, or on which the device failed."""
        if not self._under_way:
            return None
        try:
            self._forget_done()
        except RuntimeError as error:
            return Lost(self._under_way[0][0], error)
        waited_seconds = time.monotonic() - self._progress_seconds
        if self._under_way and waited_seconds > self._patience_seconds:
            return Lost(self._under_way[0][0], TimeoutError("the device still waits for it"))
        return None

    def _forget_done(self) -> None:
        while self._under_way and self._streams.reached(self._under_way[0][1]):
            self._under_way.popleft()
            self._progress_seconds = time.monotonic()
