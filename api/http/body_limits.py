"""Uploads above a limit are refused while they stream in, never held in memory."""

import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosync.api.engine.service_limits import OF_BODIES, OF_FORMS, ServiceLimits
from autosync.units import MIB

FORM_BYTES = MIB // 4
"""Of every other body: forms, and what takes none; and around a file that a form holds."""
LONGEST_LENGTH = 18
"""Digits of a Content-Length that are read; Python reads no number of thousands of them."""
DRAINED_BYTES, DRAINED_SECONDS = 1024 * MIB, 20.0
"""How much of a refused upload is read and dropped: a client that is cut off while it sends
often never reads the answer."""


class BodyLimit:
    """ASGI middleware: 413 where Content-Length or what really arrives exceeds the limit."""

    def __init__(self, app: ASGIApp, limits: ServiceLimits):
        self.app = app
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        most, name = _most_bytes(scope["path"], self.limits)
        length = dict(scope["headers"]).get(b"content-length", b"")
        announced = int(length[:LONGEST_LENGTH]) if length.isdigit() else 0
        arrived = 0

        async def limited() -> Message:
            nonlocal arrived
            if announced > most:
                await _drain(receive)
                raise _too_large(announced, most, name)
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > most:
                await _drain(receive)
                raise _too_large(arrived, most, name)
            return message

        await self.app(scope, limited, send)


def _most_bytes(path: str, limits: ServiceLimits) -> tuple[int, str]:
    """Of a body to this path, and the name of the limit that says so; empty where it is none."""
    for begin, name in OF_BODIES.items():
        if path.startswith(begin):
            return getattr(limits, name) * MIB, name
    if name := OF_FORMS.get(path, ""):
        return getattr(limits, name) * MIB + FORM_BYTES, name
    return FORM_BYTES, ""


def _too_large(size: int, most: int, name: str) -> HTTPException:
    # an HTTPException, because the framework passes only those on from the reading of a body
    shown = f"{most // MIB} MiB (`autosync serve --limit {name}=MIB`)" if name else f"{most} bytes"
    return HTTPException(413, f"the body has {size} bytes or more; the limit is {shown}.")


async def _drain(receive: Receive) -> None:
    dropped, until = 0, time.monotonic() + DRAINED_SECONDS
    while dropped < DRAINED_BYTES and time.monotonic() < until:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
        dropped += len(message.get("body", b""))
