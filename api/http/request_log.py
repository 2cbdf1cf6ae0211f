"""Every request has an id, a line of log and its place in the metrics."""

import json
import logging
import re
import time
import uuid
from typing import TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosync.api.http.request_metrics import RequestMetrics

ID_HEADER = "X-Request-ID"
GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
"""What a proxy may call a request; anything else gets an id of ours."""
log = logging.getLogger("autosync.requests")


class RequestLog:
    """ASGI middleware: the answer carries the request's id, and a line of JSON at level INFO has
    it with method, path, status, seconds and the client's address."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics):
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = dict(scope["headers"]).get(ID_HEADER.lower().encode(), b"")
        request_id = given.decode() if GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        began, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                tag = (ID_HEADER.lower().encode(), request_id.encode())
                message["headers"] = [*message["headers"], tag]
                taken = time.perf_counter() - began
                self.metrics.count(scope["method"], _path(scope), status, taken)
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception:  # counted, and passed on
            if not status:  # the framework answers outside of us, by `problems`
                status = 500
                self.metrics.count(
                    scope["method"], _path(scope), status, time.perf_counter() - began
                )
            raise
        finally:
            if log.isEnabledFor(logging.INFO):
                log.info(json.dumps(_line(scope, request_id, status, time.perf_counter() - began)))


def show_requests(stream: TextIO) -> None:
    """Write the lines there."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _path(scope: Scope) -> str:
    """As the route has it; of what no route has, one word, so that strangers make no series."""
    return getattr(scope.get("route"), "path", None) or "none"


def _line(scope: Scope, request_id: str, status: int, seconds: float) -> dict[str, object]:
    client = scope.get("client")
    return {
        "request": request_id,
        "method": scope["method"],
        "path": scope["path"][:200],
        "status": status,
        "seconds": round(seconds, 6),
        "client": client[0] if client else "",
    }
