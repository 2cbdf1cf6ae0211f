"""Messages that the host has landed and their device never reaches.

A collective that is asked of a GPU fails without a word when a peer is gone: the GPU waits in it,
and later so does the script, in whatever reads a value. So the landing thread looks now and then
whether the oldest message is done.
"""

import time
from collections import deque

from autosync.runtime.records import Step
from autosync.runtime.streams import Mark, Streams

LOOK_SECONDS = 1.0
"""How often, while nothing else lands."""


class Overdue:
    """patience_seconds: without any progress, until a message counts as lost."""

    def __init__(self, streams: Streams, patience_seconds: float):
        self._streams = streams
        self._patience_seconds = patience_seconds
        self._under_way: deque[tuple[Step, Mark]] = deque()
        self._progress_seconds = 0.0

    def add(self, step: Step) -> None:
        """A message has landed on the host."""
        if not self._under_way:
            self._progress_seconds = time.monotonic()
        self._under_way.append((step, step.ended_mark))
        self._forget_done()

    def lost(self) -> Step | None:
        """The message that has been waited for too long."""
        self._forget_done()
        if not self._under_way:
            return None
        waited_seconds = time.monotonic() - self._progress_seconds
        return self._under_way[0][0] if waited_seconds > self._patience_seconds else None

    def _forget_done(self) -> None:
        while self._under_way and self._streams.reached(self._under_way[0][1]):
            self._under_way.popleft()
            self._progress_seconds = time.monotonic()
