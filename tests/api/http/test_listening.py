"""Where a service listens, and what it says of it."""

import socket

import pytest

from autosync.api.http.listening import close, listening_sockets, shown_address
from autosync.errors import InvalidInput
from tests.api.http.serving import free_port


@pytest.mark.parametrize(
    ("host", "reached_at"),
    [
        ("127.0.0.1", ["127.0.0.1"]),
        ("127.0.0.2", ["127.0.0.2"]),
        ("::1", ["::1"]),
        ("localhost", ["127.0.0.1"]),
        ("0.0.0.0", ["127.0.0.1"]),
        ("::", ["127.0.0.1", "::1"]),
        ("", ["127.0.0.1", "::1"]),
    ],
)
def test_every_address_that_a_host_names_is_listened_on(host: str, reached_at: list[str]) -> None:
    port = free_port()
    sockets = listening_sockets(host, port)
    try:
        for address in reached_at:
            socket.create_connection((address, port), timeout=60).close()
    finally:
        close(sockets)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_that_is_taken_is_refused_by_name(host: str) -> None:
    port = free_port(host)
    sockets = listening_sockets(host, port)
    try:
        with pytest.raises(InvalidInput, match="Address already in use") as refused:
            listening_sockets(host, port)
    finally:
        close(sockets)
    assert shown_address(host, port) in refused.value.message


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 300, "192.0.2.1"])
def test_what_is_no_address_of_this_machine_is_refused(host: str) -> None:
    with pytest.raises(InvalidInput, match="cannot listen on"):
        listening_sockets(host, free_port())


def test_addresses_of_ipv6_stand_in_brackets() -> None:
    assert shown_address("::1", 8080) == "http://[::1]:8080"
    assert shown_address("localhost", 80, "/a") == "http://localhost:80/a"
