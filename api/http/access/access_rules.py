"""Who may come, by which token, host or key, and what they may do."""

import ipaddress
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from autosync.api.engine.api_keys import CLIENT_NAME, KEY, allows
from autosync.api.spec import KeyScope
from autosync.environment import TOKEN_VARIABLE
from autosync.errors import AutosyncError, InvalidInput

NAMED = re.compile(f"({CLIENT_NAME}):(.*)")
USUAL_REMEDY = f"Set {TOKEN_VARIABLE} to a long random text, or leave it out on 127.0.0.1."


@dataclass(frozen=True, slots=True)
class NamedToken:
    """name: of the client that it belongs to; empty where the only token has none."""

    name: str
    token: str = field(repr=False)


def named_tokens(text: str) -> tuple[NamedToken, ...]:
    """The tokens of `NAME:TOKEN,NAME:TOKEN`, or the one without a name.

    Raises:
        InvalidInput: one is empty or of characters that no header carries, one of several has no
            name, two are alike, or one is the key of a database, whose scope it would leave behind.
    """
    named = [NAMED.fullmatch(part.strip()) for part in text.split(",")]
    if any(named) and not all(named):
        raise _bad_token("is one of several, and has no name")
    given = [NamedToken(found[1], found[2]) for found in named if found] or [NamedToken("", text)]
    for each in given:
        if not each.token.strip():
            raise _bad_token("is empty, so it would let everyone in")
        if not (each.token.isascii() and each.token.isprintable()):
            raise _bad_token("has characters that are no printable ASCII")
        if KEY.fullmatch(each.token):
            remedy = f"Unset {TOKEN_VARIABLE}: keys of the database are let in by themselves."
            raise _bad_token("is a key of some database, made for a client", remedy)
    for what in ("name", "token"):
        if len({getattr(each, what) for each in given}) < len(given):
            raise _bad_token(f"has the {what} of another one")
    return tuple(given)


def _bad_token(why: str, remedy: str = USUAL_REMEDY) -> InvalidInput:
    return InvalidInput(f"the token {why}.", thing="--token", remedy=remedy)


LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
ANY_ADDRESS = ("0.0.0.0", "::", "")
"""What a service listens on that takes connections from every network."""
HOST = re.compile(r"[A-Za-z0-9._-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?")
"""Of a Host header; nothing in it may be read as a path."""


@dataclass(frozen=True, slots=True)
class Access:
    """token: of the operator, or several as `NAME:TOKEN,NAME:TOKEN`. hosts: the names, without a
    port, under which the service is addressed; with others a page elsewhere could reach it by DNS
    rebinding. closed: everyone needs a key or a token; it is so with a token, and becomes so with
    the first key of the database. https: browsers reach it by TLS alone, which ends before it.

    Raises:
        InvalidInput: as `named_tokens`.
    """

    token: str | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = LOOPBACK_HOSTS
    closed: bool = False
    https: bool = False
    tokens: tuple[NamedToken, ...] = field(init=False)

    def __post_init__(self) -> None:
        given = () if self.token is None else named_tokens(self.token)
        object.__setattr__(self, "tokens", given)
        object.__setattr__(self, "closed", self.closed or bool(given))

    def owner_of(self, given: str) -> NamedToken | None:
        """Whose token it is; takes as long for each of them."""
        found = None
        for each in self.tokens:
            if secrets.compare_digest(given.encode(), each.token.encode()):
                found = each
        return found


def access_on(
    host: str,
    token: str | None = None,
    names: Sequence[str] = (),
    *,
    keys: bool = False,
    https: bool = False,
) -> Access:
    """Who is let in by a service that listens on `host`. Beyond loopback everyone needs a key.

    names: under which it is addressed, besides those of loopback, `host`, and this machine's name
        where it listens on all addresses. keys: whether the database has any.

    Raises:
        InvalidInput: others could reach it, and there is neither a token nor a key; a name is none;
            or the token as `Access`.
    """
    hosts = [*LOOPBACK_HOSTS, *map(_checked_name, names)]
    beyond = not is_loopback(host)
    if beyond and token is None and not keys:
        raise InvalidInput(
            f"a service on {host!r} can be reached by others, and there is no key.",
            thing="--host",
            value=host,
            remedy="Make one (`autosync db upgrade`, then `autosync keys add NAME --scope admin`), "
            f"set {TOKEN_VARIABLE} to a long random text, or listen on 127.0.0.1.",
        )
    own = _canonical(host)
    hosts.append(socket.gethostname().lower() if own in ANY_ADDRESS else own)
    return Access(token, tuple(dict.fromkeys(hosts)), closed=beyond, https=https)


def _checked_name(name: str) -> str:
    found = hostname(name)
    if not found:  # as of a URL: with an empty name any Host header that is none would be let in
        raise InvalidInput(
            f"{name[:80]!r} is no name of a host.",
            thing="--allow-host",
            value=name[:80],
            remedy="Give the name alone, as tuner.example.com, or an address of IPv6 in brackets.",
        )
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def hostname(host: str) -> str:
    """Of a Host header: without the port and the brackets of IPv6; empty where it is none."""
    if not HOST.fullmatch(host):
        return ""
    try:
        return _canonical(urlsplit(f"//{host}").hostname or "")
    except ValueError:  # of brackets around what is no IPv6 address
        return ""


def _canonical(host: str) -> str:
    """An address as browsers send it, whichever way it was written; a name in lower case."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


Way = Literal["key", "browser", "open"]


class NotAuthorized(AutosyncError):
    """Nobody knows who sends this: 401."""


class NotAllowed(AutosyncError):
    """They are known, or need not be, and may not do this: 403."""


@dataclass(frozen=True, slots=True)
class Caller:
    """client: whose tunings and limits these are: a name, or an address where there is none.

    way: by which they came: with a key or token, as a browser that logged in, or to a service that
    asks nobody.
    """

    client: str
    scope: KeyScope
    way: Way

    @property
    def may_tune(self) -> bool:
        return allows(self.scope, "tune")

    @property
    def may_administer(self) -> bool:
        return allows(self.scope, "admin")
