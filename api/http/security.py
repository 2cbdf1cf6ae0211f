"""Who may talk to the service: hosts, origins and an optional token; what a page may load."""

import base64
import ipaddress
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosync.api.http.problems import problem
from autosync.environment import TOKEN_VARIABLE
from autosync.errors import InvalidInput

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
ANY_ADDRESS = ("0.0.0.0", "::", "")
"""What a service listens on that takes connections from every network."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = ("/v1/health", "/v1/ready")
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
    """token: None lets everyone in who can reach the port. hosts: the names, without a port, under
    which the service is addressed; with others a page elsewhere could reach it by DNS rebinding.

    Raises:
        InvalidInput: the token is empty, or of characters that no header carries.
    """

    token: str | None = None
    hosts: tuple[str, ...] = LOOPBACK_HOSTS

    def __post_init__(self) -> None:
        if self.token is None:
            return
        if not self.token.strip():
            raise _bad_token("is empty, so it would let everyone in")
        if not (self.token.isascii() and self.token.isprintable()):
            raise _bad_token("has characters that are no printable ASCII")


def access_on(host: str, token: str | None = None, names: Sequence[str] = ()) -> Access:
    """Who is let in by a service that listens on `host`. Beyond loopback a token is required.

    names: under which it is addressed, besides those of loopback, `host`, and this machine's name
        where it listens on all addresses.

    Raises:
        InvalidInput: others could reach it and there is no token; or the token as `Access`.
    """
    hosts = [*LOOPBACK_HOSTS, *(_hostname(name) for name in names)]
    if not is_loopback(host):
        if token is None:
            raise InvalidInput(
                f"a service on {host!r} can be reached by others, and there is no token.",
                thing="--token",
                remedy=f"Set {TOKEN_VARIABLE} to a long random text (for example of `openssl rand "
                "-hex 24`), or listen on 127.0.0.1.",
            )
        hosts.append(socket.gethostname().lower() if host in ANY_ADDRESS else host.lower())
    return Access(token, tuple(dict.fromkeys(hosts)))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _bad_token(why: str) -> InvalidInput:
    return InvalidInput(
        f"the token {why}.",
        thing="--token",
        remedy=f"Set {TOKEN_VARIABLE} to a long random text, or leave it out on 127.0.0.1.",
    )


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
    if _hostname(host) not in access.hosts:
        return problem(
            403,
            "Unknown host",
            f"this service is not addressed as {host[:80]!r}.",
            thing="Host",
            value=host,
            remedy=f"Use {access.hosts[0]}, or start the service with --allow-host and that name.",
        )
    origin = request.headers.get("origin")
    if request.method not in SAFE_METHODS and origin and _address(origin) != host:
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
    except ValueError:  # no base64, or no UTF-8
        return ""


def _hostname(host: str) -> str:
    """Of a Host header: without the port and the brackets of IPv6; empty where it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _address(origin: str) -> str | None:
    """The host and port of an Origin; None where it is no URL."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
