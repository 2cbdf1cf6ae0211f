"""Finds messages that the host has landed and their device never reaches.

A collective that is asked of a GPU fails without a word when a peer is gone: the GPU waits in it,
and later so does the script, in whatever reads a value. So the landing thread looks now and then
whether the oldest message is done.
"""

import time
from collections import deque
from dataclasses import dataclass

from autosync.runtime.device.streams import DeviceEvent, Streams
from autosync.runtime.layout.records import MessageRecord

LOOK_SECONDS = 1.0
"""How often, while nothing else lands."""


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A message that cannot arrive, and why."""

    record: MessageRecord
    error: Exception


class Watchdog:
    """patience_seconds: without any progress, until a message counts as lost."""

    def __init__(self, streams: Streams, patience_seconds: float):
        self._streams = streams
        self._patience_seconds = patience_seconds
        self._on_device: deque[tuple[MessageRecord, DeviceEvent]] = deque()
        self._progress_seconds = 0.0

    def add(self, record: MessageRecord) -> None:
        """A message has landed on the host."""
        if not self._on_device:
            self._progress_seconds = time.monotonic()
        self._on_device.append((record, record.ended_event))
        self._forget_done()

    def lost(self) -> LostMessage | None:
        """The message that has been waited for too long, or on which the device failed."""
        if not self._on_device:
            return None
        try:
            self._forget_done()
        except RuntimeError as error:
            return LostMessage(self._on_device[0][0], error)
        waited_seconds = time.monotonic() - self._progress_seconds
        if self._on_device and waited_seconds > self._patience_seconds:
            late = TimeoutError("the device still waits for it")
            return LostMessage(self._on_device[0][0], late)
        return None

    def _forget_done(self) -> None:
        while self._on_device and self._streams.has_reached(self._on_device[0][1]):
            self._on_device.popleft()
            self._progress_seconds = time.monotonic()
