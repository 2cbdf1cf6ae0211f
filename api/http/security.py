"""Who may talk to the service: hosts, origins and an optional token; what a page may load."""

import base64
import binascii
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosync.api.http.problems import problem

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]", "::1")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = ("/v1/health",)
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer forms come from the origin "null"
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Access:
    """token: None lets everyone in who can reach the port. hosts: names under which the service
    is addressed; empty takes any (a page elsewhere could then reach it by DNS rebinding)."""

    token: str | None = None
    hosts: tuple[str, ...] = LOOPBACK_HOSTS


class Guard:
    """ASGI middleware: refuses strangers, and sends the security headers with every answer."""

    def __init__(self, app: ASGIApp, access: Access):
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        app = refusal(Request(scope), self.access) or self.app
        await app(scope, receive, with_headers)


def refusal(request: Request, access: Access) -> Response | None:
    """Why the request is refused, or None."""
    host = request.headers.get("host", "")
    if access.hosts and _hostname(host) not in access.hosts:
        return problem(
            403,
            "Unknown host",
            f"this service is not addressed as {host[:80]!r}.",
            thing="Host",
            value=host,
            remedy=f"Use {access.hosts[0]}, or start the service with that host allowed.",
        )
    origin = request.headers.get("origin")
    if request.method not in SAFE_METHODS and origin and urlsplit(origin).netloc != host:
        return problem(
            403,
            "Foreign page",
            f"a page of {origin[:80]!r} may not change anything here.",
            thing="Origin",
            value=origin,
            remedy="Use the service's own pages, or a client that is no browser.",
        )
    if access.token and request.url.path not in OPEN_PATHS:
        given = _given_token(request.headers.get("authorization", ""))
        if not secrets.compare_digest(given.encode(), access.token.encode()):
            return problem(
                401,
                "Not authorized",
                "this service wants a token." if not given else "the token is wrong.",
                thing="Authorization",
                remedy="Send `Authorization: Bearer TOKEN`; in a browser, give it as password.",
                headers={"WWW-Authenticate": 'Basic realm="autosync", charset="UTF-8"'},
            )
    return None


def _given_token(header: str) -> str:
    """Of `Bearer TOKEN`, or the password of `Basic` (browsers ask for it by themselves)."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return value.strip() if scheme.lower() == "bearer" else ""
    try:
        return base64.b64decode(value).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _hostname(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() and name else host).lower()
