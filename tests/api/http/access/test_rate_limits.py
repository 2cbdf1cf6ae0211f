"""Bursts, rates and who counts as one client, by a clock of the test's own."""

import pytest
from starlette.requests import Request

from autosync.api.http.access.authentication import MOST_CLIENTS, RateLimiter
from autosync.api.http.access.browser import address_of


def test_a_burst_goes_through_and_then_the_rate_holds() -> None:
    now = [100.0]
    limiter = RateLimiter(2.0, burst=3.0, clock=lambda: now[0])
    for _ in range(3):
        assert limiter.wait_seconds("a") == 0
        limiter.count("a")
    assert limiter.wait_seconds("a") == pytest.approx(0.5)
    assert limiter.wait_seconds("b") == 0
    now[0] += 0.5
    assert limiter.wait_seconds("a") == pytest.approx(0)
    limiter.count("a")
    assert limiter.wait_seconds("a") == pytest.approx(0.5)
    now[0] += 60
    for _ in range(3):
        assert limiter.wait_seconds("a") == 0
        limiter.count("a")
    assert limiter.wait_seconds("a") > 0


def test_it_remembers_no_more_clients_than_it_should() -> None:
    limiter = RateLimiter(1.0, burst=1.0, clock=lambda: 0.0)
    for number in range(MOST_CLIENTS + 1):
        limiter.count(str(number))
    assert limiter.wait_seconds("0") == 0
    assert limiter.wait_seconds("1") > 0


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
        ("x" * 100, "x" * 45),
    ],
)
def test_a_host_of_many_addresses_is_one_client(host: str, client: str) -> None:
    assert address_of(Request({"type": "http", "headers": [], "client": (host, 1)})) == client
