"""Where the service listens: its sockets, and the address that it says."""

import errno
import socket
from collections.abc import Sequence

from autosync.errors import InvalidInput

BACKLOG = 2048
"""Connections that may wait to be accepted."""


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """A socket for each address that `host` names, bound before anything else is changed.

    Raises:
        InvalidInput: nobody knows the host, or the port is taken or reserved.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is no name of a host"
        raise InvalidInput(
            f"cannot listen on {host[:80]!r}: {why}.",
            thing="--host",
            value=host,
            remedy="Give an address of this machine, such as 127.0.0.1, ::1 or 0.0.0.0.",
        ) from None
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    for family, *_, address in dict.fromkeys(found):
        try:
            sockets.append(_bound(family, address, alone=len(found) > 1))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # as of ::1 where there is no IPv6
                close(sockets)
                raise _taken(host, port, error) from None
            refused = error
    if refused is not None and not sockets:
        raise _taken(host, port, refused)
    return sockets


def close(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()


def shown_address(host: str, port: int, root_path: str = "") -> str:
    """As a URL; an IPv6 address stands in brackets."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{root_path}"


def _bound(family: int, address: object, alone: bool) -> socket.socket:
    """alone: another socket takes IPv4's connections."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, alone)
        made.bind(address)  # type: ignore[arg-type]
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _taken(host: str, port: int, error: OSError) -> InvalidInput:
    return InvalidInput(
        f"cannot listen on {shown_address(host, port)}: {error.strerror}.",
        thing="--port",
        value=port,
        remedy="Give another --port or --host, or end what listens there.",
    )
