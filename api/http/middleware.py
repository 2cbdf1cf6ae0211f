"""ASGI middleware around all routes: bodies above a limit are refused while they stream in; every
request has an id, a line of log and its place in the metrics. And the protocol under it, which
refuses what is no HTTP like any other request.
"""

import asyncio
import json
import logging
import re
import time
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TextIO

import h11
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from autosync.api.engine.service_limits import OF_BODIES, OF_FORMS, ServiceLimits
from autosync.api.http.problems import METHODS, problem
from autosync.units import MIB

FORM_BYTES = MIB // 4
"""The limit of every other body: of forms, of requests without one, and of what a form has beside
its file."""
LONGEST_LENGTH = 18
"""Digits of a Content-Length that are parsed; Python refuses numbers of thousands of digits."""
HELD_BYTES = 128 * MIB
"""Of bodies that a client may have here at once, whole or still arriving. One body may have more,
where the operator allows it: the bound is on the others beside it."""
RETRY_SECONDS = 5
DRAINED_BYTES, DRAINED_SECONDS = 1024 * MIB, 20.0
"""How much of a refused upload is read and dropped: a client that is cut off while it sends
often never reads the answer."""


class BodyLimit:
    """ASGI middleware: 413 where Content-Length or what really arrives exceeds the limit, 429 where
    the requests of a client that are not answered yet would have more than HELD_BYTES in all."""

    def __init__(self, app: ASGIApp, limits: ServiceLimits):
        self.app = app
        self.limits = limits
        self._held: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        most, name = _most_bytes(scope["path"], self.limits)
        length = dict(scope["headers"]).get(b"content-length", b"")
        announced = int(length[:LONGEST_LENGTH]) if length.isdigit() else 0
        client, arrived = str(scope["state"]["client"]), 0

        async def limited() -> Message:
            nonlocal arrived
            if announced > most:
                await _drain(receive)
                raise _too_large(announced, most, name)
            message = await receive()
            size = len(message.get("body", b""))
            arrived += size
            self._held[client] += size
            if arrived > most:
                await _drain(receive)
                raise _too_large(arrived, most, name)
            if self._held[client] > HELD_BYTES and self._held[client] > arrived:
                await _drain(receive)
                raise _holds_too_much()
            return message

        try:
            await self.app(scope, limited, send)
        finally:
            self._held[client] -= arrived
            self._held += Counter()  # forgets those at 0


def _most_bytes(path: str, limits: ServiceLimits) -> tuple[int, str]:
    """Of a body to this path, and the name of the operator's limit; empty where there is none."""
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


def _holds_too_much() -> HTTPException:
    return HTTPException(
        429,
        f"your requests that are not answered yet have more than {HELD_BYTES // MIB} MiB in all.",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )


async def _drain(receive: Receive) -> None:
    dropped = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAINED_SECONDS):
            while dropped < DRAINED_BYTES:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                dropped += len(message.get("body", b""))


class HeadRequests:
    """ASGI middleware: HEAD is answered as GET is, without the body. A stream ends at its first
    part, as if the client had left."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self.app(scope, receive, send)
        inner = {**scope, "method": "GET"}
        answered = False

        async def heard() -> Message:
            return {"type": "http.disconnect"} if answered else await receive()

        async def headers_alone(message: Message) -> None:
            nonlocal answered
            if answered and message.get("more_body", False):
                raise OSError("the request was for the headers alone")
            if message["type"] == "http.response.start":
                scope["route"] = inner.get("route")
                await send(message)
                answered = True
                await send({"type": "http.response.body", "body": b""})

        try:
            await self.app(inner, heard, headers_alone)
        except (OSError, ClientDisconnect):
            if not answered:
                raise


class ProblemProtocol(H11Protocol):
    """Uvicorn answers in plain text what its parser cannot read."""

    def send_400_response(self, msg: str) -> None:
        answer = problem(
            400,
            "No HTTP",
            f"this is no HTTP/1.1 request: {msg.rstrip('.')}.",
            thing="request",
            remedy="Percent-encode what is no ASCII, and send headers as RFC 9112 has them.",
            headers={"Connection": "close"},
        )
        for event in (
            h11.Response(status_code=400, headers=answer.raw_headers, reason=b"Bad Request"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


OTHER_METHODS = "other"
"""How methods are counted that no route has: a client may send any word."""
BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class RequestMetrics:
    """Of one process, since it began. Seconds are to the first byte of the answer, since a stream
    lasts as long as somebody listens. Used on the event loop alone."""

    answered: Counter[Labels] = field(default_factory=Counter)
    buckets: dict[str, list[int]] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)

    def count(self, method: str, path: str, status: int, seconds: float) -> None:
        """path: as the route has it, without ids."""
        known = method if method in METHODS else OTHER_METHODS
        self.answered[("method", known), ("path", path), ("status", str(status))] += 1
        found = self.buckets.setdefault(path, [0] * (len(BUCKETS_SECONDS) + 1))
        found[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.seconds[path] += seconds  # type: ignore[assignment]  # a Counter adds floats, too

    def lines(self) -> Iterable[str]:
        name = "autosync_http_requests_total"
        yield from described(name, "counter", "Answered requests.")
        for labels, times in sorted(self.answered.items()):
            yield sample_line(name, times, labels)
        name = "autosync_http_request_seconds"
        yield from described(name, "histogram", "Seconds to the first byte of an answer.")
        for path, counts in sorted(self.buckets.items()):
            so_far = 0
            for limit, times in zip((*BUCKETS_SECONDS, "+Inf"), counts, strict=True):
                so_far += times
                yield sample_line(f"{name}_bucket", so_far, (("path", path), ("le", str(limit))))
            yield sample_line(f"{name}_sum", self.seconds[path], (("path", path),))
            yield sample_line(f"{name}_count", so_far, (("path", path),))


def gauge_lines(name: str, help_text: str, values: Mapping[Labels, float]) -> Iterable[str]:
    yield from described(name, "gauge", help_text)
    for labels, value in values.items():
        yield sample_line(name, value, labels)


def described(name: str, kind: str, help_text: str) -> Iterable[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"


def sample_line(name: str, value: float, labels: Labels = ()) -> str:
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{shown}}} {value:.10g}" if shown else f"{name} {value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


ID_HEADER = "X-Request-ID"
GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
"""Ids that a proxy may give a request; in place of any other the service makes one."""
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
    """The route's path; `none` where there is no route, so that strangers add no series."""
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
