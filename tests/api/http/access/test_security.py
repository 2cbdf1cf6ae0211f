"""Who is let in, how often, what pages may load, and how much may be sent."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from starlette.requests import Request

from autosync.api.db import Database
from autosync.api.engine.api_keys import make_key, revoke_key
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.access.access_rules import Access, access_on
from autosync.api.http.access.authentication import MOST_CLIENTS, RateLimiter
from autosync.api.http.access.browser import address_of
from autosync.api.http.app import create_app
from autosync.errors import InvalidInput
from tests.api.http.forms import given_token
from tests.api.http.rest_answers import posted
from tests.api.http.serving import PATIENCE_SECONDS, served
from tests.domains import chain_graph, grid_cluster

MIB = 2**20


@pytest.fixture
def guarded(sqlite: Database) -> Iterator[TestClient]:
    app = create_app(sqlite, Access("open sesame"))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def test_a_token_is_asked_of_everyone(guarded: TestClient) -> None:
    for path in ("/v1/tunings", "/", "/docs", "/openapi.json", "/nothing", "/metrics"):
        answer = guarded.get(path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "Bearer" in answer.json()["remedy"]
    wrong = guarded.get("/v1/tunings", headers={"authorization": "Bearer wrong"})
    assert wrong.status_code == 401
    right = {"authorization": "Bearer open sesame"}
    assert guarded.get("/v1/tunings", headers=right).status_code == 200
    # what a browser would send by itself, on behalf of any page, lets nobody in
    assert guarded.get("/", auth=("anyone", "open sesame")).status_code == 401
    for path in ("/v1/health", "/login", "/static/app.css"):
        assert guarded.get(path).status_code == 200


def test_a_host_header_with_a_path_opens_nothing(guarded: TestClient) -> None:
    """Where a URL is put together from it, its path is an open one."""
    for host in ("127.0.0.1/v1/health?", "127.0.0.1/static/x#", "127.0.0.1:80/login?a="):
        assert guarded.get("/v1/tunings", headers={"host": host}).status_code == 403
    for path in ("/static/../v1/tunings", "//v1/health", "/v1/health/"):
        assert guarded.get(f"http://127.0.0.1{path}").status_code in (401, 404)


def test_other_hosts_and_foreign_pages_are_refused(sqlite: Database) -> None:
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1:8765") as client:
        rebound = client.get("/v1/tunings", headers={"host": "evil.example:8765"})
        assert rebound.status_code == 403
        assert "evil.example" in rebound.json()["detail"]
        foreign = {"origin": "http://evil.example"}
        form = {"graph": "resnet50", "cluster": "example-4x1", **given_token(client)}
        assert client.post("/tunings", data=form, headers=foreign).status_code == 403
        assert client.get("/v1/tunings").json()["total"] == 0
        own = {"origin": "http://127.0.0.1:8765"}
        started = client.post("/tunings", data=form, headers=own, follow_redirects=False)
        assert started.status_code == 303


def test_beyond_loopback_a_token_is_required() -> None:
    for host in ("0.0.0.0", "::", "", "10.0.0.5", "tuner.example"):
        with pytest.raises(InvalidInput, match="can be reached by others"):
            access_on(host)
        assert access_on(host, keys=True).closed
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert not access_on(host).closed
        for empty in ("", "  "):
            with pytest.raises(InvalidInput, match="is empty"):
                access_on(host, empty)
    with pytest.raises(InvalidInput, match="printable ASCII"):
        access_on("127.0.0.1", "schlüssel")


def test_beyond_loopback_hosts_are_listed(sqlite: Database) -> None:
    access = access_on("0.0.0.0", "open sesame", ("Tuner.example",))
    right = {"authorization": "Bearer open sesame"}
    with TestClient(create_app(sqlite, access), base_url="http://tuner.example:8080") as client:
        assert client.get("/v1/tunings", headers=right).status_code == 200
        for own in ("127.0.0.1:8080", "[::1]:8080", socket.gethostname()):
            assert client.get("/v1/tunings", headers={**right, "host": own}).status_code == 200
        for other in ("evil.example", "tuner.example.evil.example", "[::1", "", "a b"):
            answer = client.get("/v1/tunings", headers={**right, "host": other})
            assert answer.status_code == 403
            assert "--allow-host" in answer.json()["remedy"]


def test_an_address_of_ipv6_may_be_written_in_any_way(sqlite: Database) -> None:
    """Browsers send the short one."""
    right = {"authorization": "Bearer open sesame"}
    access = access_on("2001:DB8:0:0::1", "open sesame", ("[2001:db8::0002]",))
    with TestClient(create_app(sqlite, access), base_url="http://127.0.0.1") as client:
        for own in ("[2001:db8::1]:8080", "[2001:DB8:0::1]", "[2001:db8::2]"):
            assert client.get("/v1/tunings", headers={**right, "host": own}).status_code == 200
    assert access_on("0:0::0", "open sesame").hosts == access_on("::", "open sesame").hosts


@pytest.mark.parametrize("name", ["https://tuner.example", "tuner.example/autosync", "::1", ""])
def test_a_name_that_no_host_header_can_have_is_refused(name: str) -> None:
    """Else nobody could address the service by it, and a header that is no name would pass."""
    with pytest.raises(InvalidInput, match="is no name of a host") as refused:
        access_on("127.0.0.1", names=(name,))
    assert refused.value.thing == "--allow-host"


def test_headers_that_are_none_are_refused(guarded: TestClient) -> None:
    right = {"authorization": "Bearer open sesame"}
    broken = guarded.post("/tunings", headers={**right, "origin": "http://[::1"})
    assert broken.status_code == 403
    assert broken.json()["thing"] == "Origin"
    led = guarded.post("/tunings", headers={"accept": "text/html", "referer": "http://[::1"})
    assert led.status_code == 401
    assert 'href="/login?next=/"' in led.text
    for header in (b"Basic \xc3\xa4", b"Bearer \xff\xfe", b"Bearer"):
        answer = guarded.get("/v1/tunings", headers=[(b"authorization", header)])
        assert answer.status_code == 401


def test_every_answer_carries_the_policy(guarded: TestClient) -> None:
    for path in ("/v1/health", "/v1/tunings", "/nothing"):
        policy = guarded.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


def test_tokens_have_names_and_clients_are_told_apart() -> None:
    access = access_on("0.0.0.0", "alice:first, bob:second:with:colons")
    assert [(each.name, each.token) for each in access.tokens] == [
        ("alice", "first"),
        ("bob", "second:with:colons"),
    ]
    assert access.owner_of("second:with:colons") == access.tokens[1]
    assert access.owner_of("alice:first") is None
    assert "first" not in repr(access)
    (alone,) = Access("commas, but no names").tokens
    assert (alone.name, alone.token) == ("", "commas, but no names")
    for wrong, why in (
        ("alice:first,second", "has no name"),
        ("alice:first,bob:", "is empty"),
        ("alice:first,alice:second", "the name of another"),
        ("alice:first,bob:first", "the token of another"),
        (f"alice:{'0' * 12}.{'x' * 43}", "a key of some database"),
    ):
        with pytest.raises(InvalidInput, match=why):
            access_on("0.0.0.0", wrong)


def test_guesses_of_tokens_are_slowed_down_and_cost_nobody_else_anything(sqlite: Database) -> None:
    app = create_app(sqlite, Access("alice:open,bob:sesame"))
    app.state.authentication.wrong_tokens.clock = lambda: 0.0  # however long the requests take
    right = {"authorization": "Bearer sesame"}
    key = {"authorization": f"Bearer {make_key(sqlite, 'carol', 'read').text}"}
    with TestClient(app, base_url="http://127.0.0.1", client=("192.0.2.1", 1)) as client:
        assert client.get("/v1/tunings").status_code == 401  # a browser asks without one first
        answers = [
            client.get("/v1/tunings", headers={"authorization": f"Bearer guess{number}"})
            for number in range(11)
        ]
        assert [answer.status_code for answer in answers] == [401] * 10 + [429]
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert "--limit wrong_tokens" in answers[-1].json()["remedy"]
        # a right one is no sooner told from there, else it could be found among guesses
        assert client.get("/v1/tunings", headers=right).status_code == 429
        assert client.get("/v1/health").status_code == 200
        # nobody finds a key by guessing
        assert client.get("/v1/tunings", headers=key).status_code == 200
    with TestClient(app, base_url="http://127.0.0.1", client=("192.0.2.2", 1)) as client:
        assert client.get("/v1/tunings", headers=right).status_code == 200


def test_a_script_with_an_old_key_or_token_keeps_nobody_out(sqlite: Database) -> None:
    """It shows the same text again and again, from the address of others."""
    app = create_app(sqlite, Access("alice:open,bob:sesame"))
    known = make_key(sqlite, "carol", "read").text
    revoked = make_key(sqlite, "dave", "read")
    revoke_key(sqlite, revoked.id)
    guessed = [f"{known[:13]}{number:043d}" for number in range(30)]
    with TestClient(app, base_url="http://127.0.0.1", client=("192.0.2.1", 1)) as client:
        for wrong in [*["old"] * 30, *[revoked.text] * 30, *guessed]:
            answer = client.get("/v1/tunings", headers={"authorization": f"Bearer {wrong}"})
            assert answer.status_code == 401
        for right in (known, "sesame"):
            answer = client.get("/v1/tunings", headers={"authorization": f"Bearer {right}"})
            assert answer.status_code == 200


def test_requests_of_a_client_are_counted_wherever_they_come_from(sqlite: Database) -> None:
    app = create_app(sqlite, Access("alice:open,bob:sesame"), ServiceLimits(requests=1))
    app.state.authentication.requests.clock = lambda: 0.0  # however long they take
    headers = {name: {"authorization": f"Bearer {name}"} for name in ("open", "sesame")}
    for host in ("192.0.2.1", "192.0.2.2"):
        with TestClient(app, base_url="http://127.0.0.1", client=(host, 1)) as client:
            answers = [client.get("/v1/limits", headers=headers["open"]) for _ in range(3)]
    assert answers[-1].status_code == 429
    assert "--limit requests" in answers[-1].json()["remedy"]
    with TestClient(app, base_url="http://127.0.0.1", client=("192.0.2.2", 1)) as client:
        answer = client.get("/v1/limits", headers=headers["sesame"])
        assert answer.status_code == 200
        assert answer.json()["requests"] == 1


def test_a_database_that_is_away_lets_nobody_in(sqlite: Database) -> None:
    """Whether it has keys is not known then."""
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        with sqlite.writing() as session:
            session.execute(text("drop table browser_sessions"))
            session.execute(text("drop table api_keys"))
        for accept in ("*/*", "text/html"):
            answer = client.get("/models", headers={"accept": accept})
            assert answer.status_code == 503
            assert "database does not answer" in answer.text
        assert client.get("/v1/limits").headers["retry-after"] == "5"
        assert client.get("/v1/health").status_code == 200


def test_what_is_no_http_is_refused_like_the_rest(sqlite_url: str) -> None:
    with served(sqlite_url) as service:
        place = urlsplit(service.address)
        for sent in (b"garbage\r\n\r\n", b"GET / HTTP/1.1\r\nno header\r\n\r\n"):
            with socket.create_connection(
                (place.hostname, place.port), timeout=PATIENCE_SECONDS
            ) as raw:
                raw.sendall(sent)
                head, _, body = b"".join(iter(lambda: raw.recv(4096), b"")).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert b"content-type: application/problem+json" in head.lower()
            assert json.loads(body)["remedy"]


def zeros(size_bytes: int) -> Iterator[bytes]:
    for _ in range(size_bytes // MIB):
        yield b"0" * MIB


def test_what_is_too_large_is_refused_without_being_held(sqlite_url: str) -> None:
    with served(sqlite_url, "", "graph_mib=8") as service:
        url = f"{service.address}/v1/graphs"
        httpx.post(url, content=b"{}", timeout=PATIENCE_SECONDS)
        before = service.peak_memory_bytes()
        announced = httpx.post(
            url,
            content=zeros(64 * MIB),
            headers={"content-length": str(64 * MIB)},
            timeout=PATIENCE_SECONDS,
        )
        chunked = httpx.post(url, content=zeros(64 * MIB), timeout=PATIENCE_SECONDS)
        for answer in (announced, chunked):
            assert answer.status_code == 413
            assert answer.headers["content-type"] == "application/problem+json"
            assert "limit is 8 MiB" in answer.json()["detail"]
            assert answer.json()["remedy"]
        assert service.peak_memory_bytes() - before < 32 * MIB
        allowed = httpx.post(url, content=zeros(8 * MIB), timeout=PATIENCE_SECONDS)
        assert allowed.status_code == 422


def test_names_are_text_on_every_page(sqlite: Database) -> None:
    """Whoever posts a document names what pages show to others."""
    hostile = '<script src="/static/docs.js"></script>'
    graph = replace(chain_graph(), name=hostile)
    graph = replace(
        graph, variables=(replace(graph.variables[0], name=hostile), *graph.variables[1:])
    )
    cluster = replace(grid_cluster(), name=hostile)
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        body = {**posted(client, graph, cluster), "budget": 1}
        tuning = client.post("/v1/tunings", json=body).json()["id"]
        notes = {"note": hostile, "tags": "<b>", **given_token(client)}
        client.post(f"/tunings/{tuning}/notes", data=notes)
        of_tuning = f"/tunings/{tuning}"
        for path in ("/", "/models", "/clusters", f"/models/{graph.id}", of_tuning):
            shown = client.get(path, headers={"accept": "text/html"}).text
            assert hostile not in shown, path
            assert "<b>" not in shown, path
            assert "&lt;script" in shown, path
        told = client.get(f"/tunings/{hostile}", headers={"accept": "text/html"})
        assert hostile not in told.text


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
