"""Who may talk to the service: hosts, origins, tokens and how often; what a page may load."""

import base64
import ipaddress
import math
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosync.api.engine.service_limits import ServiceLimits, how_to_raise
from autosync.api.http.client_tokens import NamedToken, named_tokens
from autosync.api.http.problems import problem
from autosync.api.http.rate_limits import RateLimiter
from autosync.environment import TOKEN_VARIABLE
from autosync.errors import InvalidInput

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
ANY_ADDRESS = ("0.0.0.0", "::", "")
"""What a service listens on that takes connections from every network."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = ("/v1/health", "/v1/ready")
BURST_SECONDS = 5.0
"""A client that was silent may send so many seconds' requests at once."""
WRONG_TOKENS_AT_ONCE = 10.0
LONGEST_ADDRESS = 45
"""Characters of an IPv6 address."""
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
    """token: one, or several as `NAME:TOKEN,NAME:TOKEN`; None lets everyone in who can reach the
    port. hosts: the names, without a port, under which the service is addressed; with others a
    page elsewhere could reach it by DNS rebinding.

    Raises:
        InvalidInput: as `named_tokens`.
    """

    token: str | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = LOOPBACK_HOSTS
    tokens: tuple[NamedToken, ...] = field(init=False)

    def __post_init__(self) -> None:
        given = () if self.token is None else named_tokens(self.token)
        object.__setattr__(self, "tokens", given)

    def owner_of(self, given: str) -> NamedToken | None:
        """Whose token it is; takes as long for each of them."""
        found = None
        for each in self.tokens:
            if secrets.compare_digest(given.encode(), each.token.encode()):
                found = each
        return found


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


class Guard:
    """ASGI middleware: refuses strangers and whoever comes too often, says who the client is
    (`request.state.client`), and sends the security headers with every answer."""

    def __init__(self, app: ASGIApp, access: Access, limits: ServiceLimits):
        self.app = app
        self.access = access
        self.requests = RateLimiter(limits.requests, burst=BURST_SECONDS * limits.requests)
        self.wrong_tokens = RateLimiter(limits.wrong_tokens, burst=WRONG_TOKENS_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        request = Request(scope)
        app = refusal(request, self.access) or self._refusal_of_client(request) or self.app
        await app(scope, receive, with_headers)

    def _refusal_of_client(self, request: Request) -> Response | None:
        """Why the request is refused for its token or as one too many, or None."""
        address = address_of(request)
        request.state.client = address
        if not self.access.tokens or request.url.path in OPEN_PATHS:
            return None
        if wait := self.wrong_tokens.wait_seconds(address):  # a right one would tell a guesser
            return too_often(wait, "wrong tokens from this address", "wrong_tokens")
        given = _given_token(request.headers.get("authorization", ""))
        owner = self.access.owner_of(given)
        if owner is None:
            if given:
                self.wrong_tokens.count(address)
            return _unauthorized(given)
        request.state.client = owner.name or address
        if wait := self.requests.wait_seconds(request.state.client):
            return too_often(wait, "requests of yours", "requests")
        self.requests.count(request.state.client)
        return None


def refusal(request: Request, access: Access) -> Response | None:
    """Why the request is refused for its host or origin, or None."""
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
    return None


def too_often(wait_seconds: float, what: str, limit: str) -> Response:
    """429, with the whole seconds after which the client is let through."""
    return problem(
        429,
        "Too many requests",
        f"too many {what}.",
        thing=limit,
        remedy=f"Try again in {wait_seconds:.1f} s. {how_to_raise(limit)}",
        headers={"Retry-After": str(math.ceil(wait_seconds))},
    )


def address_of(request: Request) -> str:
    """The client's address; of IPv6 the network of 64 bits, of which a host has all addresses."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host[:LONGEST_ADDRESS]
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((address.packed[:8] + bytes(8), 64)))


def _unauthorized(given: str) -> Response:
    return problem(
        401,
        "Not authorized",
        "the token is wrong." if given else "this service wants a token.",
        thing="Authorization",
        remedy="Send `Authorization: Bearer TOKEN`; in a browser, give it as password.",
        headers={"WWW-Authenticate": 'Basic realm="autosync", charset="UTF-8"'},
    )


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
