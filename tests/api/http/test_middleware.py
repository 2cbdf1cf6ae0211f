"""Requests have ids, lines of log and numbers; more may come than there are connections."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from fastapi.testclient import TestClient

from autosync.api.db import Database
from autosync.api.db.database import POOL
from autosync.api.http import middleware
from autosync.api.http.app import create_app
from autosync.search.loop.outcome import TuningEvent
from tests.api.sample import claimed, finished, small_request


@pytest.fixture
def client(sqlite: Database) -> Iterator[TestClient]:
    app = create_app(sqlite)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def test_a_request_is_known_by_its_id(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autosync.requests")
    assert client.get("/v1/health", headers={"X-Request-ID": "of.a-proxy_1"}).headers[
        "x-request-id"
    ] == ("of.a-proxy_1")
    ours = client.get("/v1/nothing", headers={"X-Request-ID": "no id\x01"}).headers["x-request-id"]
    assert len(ours) == 32
    lines = [
        json.loads(each.message) for each in caplog.records if each.name == "autosync.requests"
    ]
    assert [(line["request"], line["status"]) for line in lines] == [
        ("of.a-proxy_1", 200),
        (ours, 404),
    ]
    assert lines[0]["path"] == "/v1/health"
    assert lines[0]["seconds"] > 0


def test_lines_go_where_they_are_asked_for(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_tests = logging.Logger("requests")
    monkeypatch.setattr(middleware, "log", of_tests)
    stream = io.StringIO()
    middleware.show_requests(stream)
    client.get("/v1/ready")
    (line,) = stream.getvalue().splitlines()
    assert (json.loads(line)["path"], json.loads(line)["status"]) == ("/v1/ready", 503)


def test_a_defect_is_found_by_the_id_of_its_request(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("autosync.api.views.service.health", lambda session: 1 / 0)
    answer = client.get("/v1/health")
    assert answer.status_code == 500
    request_id = answer.headers["x-request-id"]
    assert any(request_id in record.message and record.exc_info for record in caplog.records)
    told = client.get("/metrics").text
    assert 'autosync_http_requests_total{method="GET",path="/v1/health",status="500"} 1' in told


def test_numbers_to_watch(client: TestClient, sqlite: Database) -> None:
    tuning_id = finished(sqlite)
    for _ in range(3):
        client.get(f"/v1/tunings/{tuning_id}")
    client.get("/v1/nobody/knows/this")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert samples['autosync_tunings{state="finished"}'] == "1"
    assert samples['autosync_tunings{state="queued"}'] == "0"
    assert samples["autosync_workers"] == "0"
    assert samples["autosync_listeners"] == "0"
    path = "/v1/tunings/{tuning_id}"
    counted = f'autosync_http_requests_total{{method="GET",path="{path}",status="200"}}'
    assert samples[counted] == "3"
    assert samples[f'autosync_http_request_seconds_bucket{{path="{path}",le="+Inf"}}'] == "3"
    assert samples[f'autosync_http_request_seconds_count{{path="{path}"}}'] == "3"
    assert float(samples[f'autosync_http_request_seconds_sum{{path="{path}"}}']) > 0
    assert not any("nobody" in line for line in lines)


def test_methods_that_nobody_knows_add_no_series(client: TestClient) -> None:
    for method in ("BREW", "WHEN", "X" * 1000):
        assert client.request(method, "/v1/health").status_code == 405
    told = client.get("/metrics").text.splitlines()
    counted = [line for line in told if line.startswith("autosync_http_requests_total")]
    assert [line.split()[-1] for line in counted if 'method="other"' in line] == ["3"]
    assert not any("BREW" in line for line in told)


AT_ONCE = 3 * (POOL["pool_size"] + POOL["max_overflow"])


@pytest.mark.parametrize("path", ["/v1/health", "/v1/tunings"])
def test_requests_that_wait_for_a_connection_keep_none_from_being_given_back(
    sqlite: Database, path: str
) -> None:
    app = create_app(sqlite)

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await asyncio.gather(*(client.get(path) for _ in range(AT_ONCE)))

    assert {answer.status_code for answer in asyncio.run(ask())} == {200}


HEADS = (
    *("/", "/models", "/clusters/example-4x1", "/static/app.css", "/openapi.json"),
    *("/v1/health", "/v1/tunings", "/v1/graphs", "/v1/runtimes.csv", "/v1/runtimes.zip"),
    *("/tunings/{}", "/v1/tunings/{}", "/v1/tunings/{}/bundle", "/v1/tunings/{}/events"),
)


def test_head_is_answered_as_get_is_without_a_body(client: TestClient, sqlite: Database) -> None:
    tuning_id = finished(sqlite)
    for path in (each.format(tuning_id) for each in HEADS):
        whole, head = client.get(path), client.head(path)
        assert whole.is_success, path
        assert head.status_code == whole.status_code, path
        assert head.content == b"", path
        own = ("x-request-id", "set-cookie", "etag")
        shown = [{k: v for k, v in each.headers.items() if k not in own} for each in (whole, head)]
        assert shown[0] == shown[1], path


def test_head_of_a_stream_that_goes_on_ends_at_once(client: TestClient, sqlite: Database) -> None:
    held, store = claimed(sqlite, small_request())
    store.report(TuningEvent("search", "goes on", 1, 2))
    answer = client.head(f"/v1/tunings/{held.job_id}/events")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_head_of_what_is_not_there(client: TestClient) -> None:
    assert client.head("/v1/tunings/none").status_code == 404
    assert client.head("/v1/tunings/none/cancel").status_code == 405


def test_bodies_that_arrive_at_once_are_bounded_for_each_client(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "HELD_BYTES", 3000)
    app = create_app(sqlite)

    async def ask() -> list[httpx.Response]:
        arrived, may_end = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b" " * 2000
            arrived.set()
            await may_end.wait()
            yield b"{"

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

            async def post(body: bytes | AsyncIterator[bytes]) -> httpx.Response:
                sent = {"content-type": "application/json"}
                return await client.post("/v1/graphs", content=body, headers=sent)

            first = asyncio.create_task(post(slow()))
            await arrived.wait()
            beside = await post(b" " * 2000)
            may_end.set()
            return [await first, beside, await post(b" " * 4000)]

    first, beside, alone = asyncio.run(ask())
    assert beside.status_code == 429
    assert beside.headers["retry-after"] == "5"
    assert {first.status_code, alone.status_code} == {422}
