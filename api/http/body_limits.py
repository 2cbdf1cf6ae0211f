"""Uploads above a limit are refused while they stream in, never held in memory."""

import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosync.units import MIB

MAX_BODY_BYTES = 32 * MIB
"""The largest bundled graph is a twentieth of this."""
LONGEST_LENGTH = 18
"""Digits of a Content-Length that are read; Python reads no number of thousands of them."""
DRAINED_BYTES, DRAINED_SECONDS = 1024 * MIB, 20.0
"""How much of a refused upload is read and dropped: a client that is cut off while it sends
often never reads the answer."""


class BodyLimit:
    """ASGI middleware: 413 where Content-Length or what really arrives exceeds the limit."""

    def __init__(self, app: ASGIApp, max_body_bytes: int = MAX_BODY_BYTES):
        self.app = app
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        length = dict(scope["headers"]).get(b"content-length", b"")
        announced = int(length[:LONGEST_LENGTH]) if length.isdigit() else 0
        arrived = 0

        async def limited() -> Message:
            nonlocal arrived
            if announced > self.max_body_bytes:
                await _drain(receive)
                raise self._too_large(announced)
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > self.max_body_bytes:
                await _drain(receive)
                raise self._too_large(arrived)
            return message

        await self.app(scope, limited, send)

    def _too_large(self, size: int) -> HTTPException:
        # an HTTPException, because the framework passes only those on from the reading of a body
        limit = self.max_body_bytes // MIB
        return HTTPException(413, f"the body has {size} bytes or more; the limit is {limit} MiB.")


async def _drain(receive: Receive) -> None:
    dropped, until = 0, time.monotonic() + DRAINED_SECONDS
    while dropped < DRAINED_BYTES and time.monotonic() < until:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
        dropped += len(message.get("body", b""))
