"""What a browser sends beside its request: the dashboard's two cookies, the token that each of its
forms carries, the host it asks for and the page that sent it; and where an answer may lead.

A browser that logged in has a session's cookie, which the database knows
(`autosync.api.engine.api_keys`). One that has not gets another, for its forms. The token of
a form is a hash keyed by the cookie: a page elsewhere may make a browser send the form, but can
neither read the cookie nor the token.
"""

import hmac
import ipaddress
import re
import secrets
from urllib.parse import SplitResult, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from autosync.api.engine.api_keys import SESSION_SECONDS
from autosync.api.http.access.access_rules import Access, NotAllowed, hostname

SESSION_COOKIE, FORM_COOKIE = "autosync_session", "autosync_form"
SECURE_PREFIX, BELOW_PREFIX = "__Host-", "__Secure-"
"""Of a cookie's name under TLS: browsers then take it from this very host alone; below a root path,
which `__Host-` does not allow, from TLS alone."""
VALUE = re.compile(r"[A-Za-z0-9_-]{43}")
FORM_FIELD, FORM_HEADER = "form_token", "X-Form-Token"
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
FORM_PURPOSE = b"a form of the dashboard"


def is_https(request: Request, access: Access) -> bool:
    """Whether the browser speaks TLS: the operator says so, or a proxy that is trusted to."""
    return access.https or request.scope["scheme"] == "https"


def session_cookie(request: Request, access: Access) -> str | None:
    """The session's cookie that the browser sent; None without a valid one."""
    return _sent(request, access, SESSION_COOKIE)


def new_cookie() -> str:
    return secrets.token_urlsafe(32)


def send_session(request: Request, access: Access, response: Response, value: str) -> None:
    name, secure = _named(request, access, SESSION_COOKIE)
    response.set_cookie(
        name,
        value,
        SESSION_SECONDS,
        path=_path(request),
        httponly=True,
        samesite="strict",
        secure=secure,
    )


def take_session(request: Request, access: Access, response: Response) -> None:
    name, secure = _named(request, access, SESSION_COOKIE)
    response.delete_cookie(
        name, path=_path(request), httponly=True, samesite="strict", secure=secure
    )


def form_key(request: Request, access: Access) -> str | None:
    """The cookie that the tokens of this browser's forms are keyed by."""
    return session_cookie(request, access) or _sent(request, access, FORM_COOKIE)


def send_form_key(request: Request, access: Access, response: Response, value: str) -> None:
    """Until the browser is closed. Lax: it comes with links from elsewhere, too, so that they do
    not replace it under the forms that are open already; forms from elsewhere lack it."""
    name, secure = _named(request, access, FORM_COOKIE)
    response.set_cookie(
        name, value, path=_path(request), httponly=True, samesite="lax", secure=secure
    )


def form_token(key: str) -> str:
    return hmac.digest(key.encode(), FORM_PURPOSE, "sha256").hex()


async def check_form_token(request: Request) -> None:
    """
    Raises:
        NotAllowed: neither the header nor the form has the token that goes with the cookie.
    """
    given: object = request.headers.get(FORM_HEADER)
    form_type = request.headers.get("content-type", "").lower()
    if given is None and form_type.startswith(FORM_TYPES):
        given = (await request.form()).get(FORM_FIELD)
    shown = given if isinstance(given, str) else ""
    key = form_key(request, request.app.state.access)
    if key is None or not hmac.compare_digest(shown.encode(), form_token(key).encode()):
        raise NotAllowed(
            "this form was not given to this browser, or was before it logged in or out.",
            thing=FORM_FIELD,
            remedy="Load the page again and send it from there. The browser must take cookies.",
        )


def _sent(request: Request, access: Access, cookie: str) -> str | None:
    value = request.cookies.get(_named(request, access, cookie)[0], "")
    return value if VALUE.fullmatch(value) else None


def _named(request: Request, access: Access, cookie: str) -> tuple[str, bool]:
    """The cookie's name, and whether browsers send it over TLS alone."""
    secure = is_https(request, access)
    prefix = BELOW_PREFIX if request.app.state.root_path else SECURE_PREFIX
    return (prefix + cookie if secure else cookie), secure


def _path(request: Request) -> str:
    """Of the addresses to which browsers send a cookie."""
    return request.app.state.root_path or "/"


SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
LONGEST_ADDRESS = 45
"""Characters of an IPv6 address."""


def check_origin(request: Request, access: Access) -> None:
    """
    Raises:
        NotAllowed: it asks for another host, as after DNS rebinding, or is to change something and
            was sent by a page of another site.
    """
    host = request.headers.get("host", "")
    if hostname(host) not in access.hosts:
        raise NotAllowed(
            f"this service is not addressed as {host[:80]!r}.",
            thing="Host",
            value=host,
            remedy=f"Use {access.hosts[0]}, or start the service with --allow-host and that name.",
        )
    origin = request.headers.get("origin")
    if request.method in SAFE_METHODS or not origin:
        return
    page = parsed_url(origin)
    if page.netloc != host or (page.scheme != "https" and is_https(request, access)):
        raise NotAllowed(
            f"a page of {origin[:80]!r} may not change anything here.",
            thing="Origin",
            value=origin,
            remedy="Use the service's own pages, or a client that is no browser.",
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


def parsed_url(text: str) -> SplitResult:
    """Its parts; empty ones where it is no URL."""
    try:
        return urlsplit(text)
    except ValueError:
        return urlsplit("")


def local_address(address: str) -> str:
    """The address, where it is a path of this service; else its first page: nobody may be led
    elsewhere from here. Browsers read a backslash as a slash."""
    plain = address.isprintable() and "\\" not in address
    return address if plain and address.startswith("/") and address[1:2] != "/" else "/"
