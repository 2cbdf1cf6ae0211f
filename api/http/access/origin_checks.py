"""Where a request comes from: the address, the host it asks for, the page that sent it; and where
an answer may lead."""

import ipaddress
from urllib.parse import SplitResult, urlsplit

from starlette.requests import Request

from autosync.api.http.access.access_rules import Access, hostname
from autosync.api.http.access.browser_cookies import is_https
from autosync.api.http.access.caller import NotAllowed

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
