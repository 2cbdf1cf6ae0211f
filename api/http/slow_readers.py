"""Streams that somebody reads for minutes: how many at once, and when a slow reader is cut off."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from autosync.api.engine.service_limits import ServiceLimits, TryLater, how_to_raise
from autosync.api.http.middleware import ProblemProtocol

MOST_EXPORTS = 16
"""Of all clients, at once."""
RETRY_SECONDS = 10.0
SLOW_SECONDS = 30.0
LEAST_BYTES = 16 * 1024
"""What a reader takes in SLOW_SECONDS at least; who takes less is cut off."""
log = logging.getLogger(__name__)


class ExportReaders:
    """Who reads exports. Used on the event loop alone."""

    def __init__(self, limits: ServiceLimits):
        self.limits = limits
        self._reading: Counter[str] = Counter()

    def begin(self, client: str) -> None:
        """Raises TryLater where the client, or all of them, read as many as they may."""
        most = self.limits.exports
        if self._reading[client] >= most or self._reading.total() >= MOST_EXPORTS:
            raise TryLater(
                f"{self._reading[client]} exports of yours and {self._reading.total()} of all "
                f"clients are being read; {most} and {MOST_EXPORTS} may be.",
                thing="exports",
                remedy=f"Wait until one has ended. {how_to_raise('exports')}",
                retry_seconds=RETRY_SECONDS,
            )
        self._reading[client] += 1

    def end(self, client: str) -> None:
        self._reading[client] -= 1
        self._reading += Counter()  # forgets those at 0


class Export(StreamingResponse):
    """One of the exports that a client reads at once.

    parts: each is made by a thread when the one before was sent.
    """

    def __init__(self, parts: Iterator[str] | Iterator[bytes], media_type: str, name: str):
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        super().__init__(parts, media_type=media_type, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        readers: ExportReaders = scope["app"].state.export_readers
        client = str(scope["state"]["client"])
        readers.begin(client)
        try:
            await super().__call__(scope, receive, send)
        finally:
            readers.end(client)


class BoundedProtocol(ProblemProtocol):
    """Cuts off who does not read an answer: it holds memory, and a place among readers."""

    slow_seconds = SLOW_SECONDS
    _timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unwatch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._unwatch()
        unread = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(self.slow_seconds, self._cut_if_slow, unread)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut_if_slow(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() > unread - LEAST_BYTES:
            log.warning("cut off a reader that took less than %d bytes", LEAST_BYTES)
            self.transport.abort()
        else:
            self._watch()
