"""Refuses NUL (U+0000) in what clients send: PostgreSQL holds no text with one, and SQLite does."""

import re
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosync.api.http.access.guard import refusal_for
from autosync.api.http.problems import REMEDIES
from autosync.errors import InvalidInput

ESCAPED_IN_JSON = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
LONGEST_OVERLAP = 64
"""Bytes of a chunk that are looked at again with the next one: an escape may be cut in two."""
BINARY = "multipart/form-data"
FORM = "application/x-www-form-urlencoded"


class RefuseNul:
    """ASGI middleware: 422 where path, query or body has one. Files in forms may: they are checked
    as what they are."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        for where, text in (
            ("path", scope["path"].encode("utf-8", "surrogateescape")),
            ("query", unquote_to_bytes(scope["query_string"])),
        ):
            if b"\0" in text:
                error = InvalidInput(
                    f"the {where} has a NUL character.", thing=where, remedy=REMEDIES[422]
                )
                return await refusal_for(Request(scope), error)(scope, receive, send)
        content_type = Request(scope).headers.get("content-type", "").lower()
        if content_type.startswith(BINARY):
            return await self.app(scope, receive, send)
        before = b""

        async def checked() -> Message:
            nonlocal before
            message = await receive()
            part = before + message.get("body", b"")
            if _has_nul(part, content_type):
                # an HTTPException, because the framework passes only those on from here
                raise HTTPException(422, "the body has a NUL character.")
            before = part[-LONGEST_OVERLAP:]
            return message

        await self.app(scope, checked, send)


def _has_nul(body: bytes, content_type: str) -> bool:
    if b"\0" in body:
        return True
    if content_type.startswith(FORM):
        return b"%00" in body
    return b"\\u0000" in body and ESCAPED_IN_JSON.search(body) is not None
