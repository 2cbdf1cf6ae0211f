"""Heavy requests are answered by bounded processes: they end with time, memory and client."""

import asyncio
import json
import os
import re
import select
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from autosync.api.db import Database
from autosync.api.db.tables import TuningRow
from autosync.api.engine.api_keys import make_key
from autosync.api.engine.service_limits import OF_BODIES, ServiceLimits
from autosync.api.http import answer_processes, heavy_requests
from autosync.api.http.access.access_rules import Access
from autosync.api.http.access.guard import methods_of
from autosync.api.http.answer_process import ForwardedAnswer
from autosync.api.http.answer_processes import AnswerProcesses
from autosync.api.http.app import API, create_app
from autosync.api.http.heavy_requests import SMALL_JSON_BYTES
from autosync.documents import to_json
from tests.api.http.forms import given_token
from tests.api.http.rest_answers import posted
from tests.api.http.serving import Service, children
from tests.api.sample import claimed, finished, small_request
from tests.domains import chain_graph
from tests.waiting import until

SHAPES = ((4, 4),) * 600
"""Of a graph whose document is large."""
PATIENCE_SECONDS = 120.0
"""Not what it takes, but when to give up."""
CHAIN = {"proposals": 16, "top": 1, "simulator": "timeline"}


def stored(client: httpx.Client | TestClient, shapes: Any = ((64, 32), (32,))) -> dict[str, Any]:
    """A request for a ranking."""
    return {**CHAIN, **posted(client, chain_graph(shapes))}


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.address, timeout=PATIENCE_SECONDS) as client:
        yield client


@contextmanager
def asking(service: Service, asked: dict[str, Any]) -> Iterator[socket.socket]:
    """A client that asks for a ranking, and leaves at the end of the block."""
    place, body = urlsplit(service.address), json.dumps(asked)
    head = f"POST /v1/rank HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection((place.hostname, place.port), PATIENCE_SECONDS) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
        yield connection


def is_answered(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def worked_seconds(pids: set[int]) -> float:
    """Processor seconds that these processes have taken so far."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


def test_predictions_and_large_documents_are_answered_in_processes(
    service: Service, client: httpx.Client
) -> None:
    asked = stored(client)
    assert children(service.pid) == []
    ranked = client.post("/v1/rank", json=asked)
    assert ranked.status_code == 200, ranked.text
    assert ranked.json()["items"][0]["rank"] == 1
    assert ranked.headers["content-security-policy"]
    (predicting,) = children(service.pid)
    large = to_json(chain_graph(SHAPES))
    posted = client.post("/v1/graphs", content=large)
    assert posted.status_code == 201, posted.text
    reading = set(children(service.pid)) - {predicting}
    page = client.get(f"/models/{posted.json()['id']}")
    assert (page.status_code, "chain" in page.text) == (200, True)
    assert set(children(service.pid)) - {predicting} == reading
    again = client.post("/v1/rank", json={**asked, "proposals": 17})
    assert again.status_code == 200
    assert predicting in children(service.pid)
    for pid in (predicting, *reading):
        assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, service.pid)
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"AUTOSYNC_DATABASE_URL" not in environment
    told = client.get("/metrics").text
    assert 'path="/v1/rank",status="200"' in told


def test_a_refusal_in_a_process_is_one_of_the_service(client: httpx.Client) -> None:
    unknown = client.post("/v1/rank", json={"graph": "nothing", "cluster": "example-4x1"})
    assert (unknown.status_code, unknown.json()["thing"]) == (404, "graph")
    misspelt = client.post("/v1/rank?proposals=3", json={"graph": "resnet50"})
    assert misspelt.status_code == 422
    foreign = client.post("/v1/rank", json={}, headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403


def test_a_prediction_ends_with_its_client_and_a_process_that_starts_does_not(
    service: Service, client: httpx.Client
) -> None:
    """Who gives up while kernels are compiled does not make the next one wait for them again."""
    asked, small = {**stored(client, SHAPES), "proposals": 30_000}, stored(client)
    assert client.post("/v1/rank", json=small).status_code == 200
    before = set(children(service.pid))
    begun = worked_seconds(before)
    with asking(service, asked):
        until(lambda: worked_seconds(before) > begun + 0.2, "work on the request")
    until(lambda: set(children(service.pid)) < before, "its end with its client")
    left = set(children(service.pid))
    started: set[int] = set()
    while not started:  # until the service has seen a connection close, its client has a turn
        with asking(service, small) as connection:
            until(lambda: set(children(service.pid)) > left or is_answered(connection), "a start")
            started = set(children(service.pid)) - left
    until(lambda: client.post("/v1/rank", json=small).status_code == 200, "a turn")
    assert set(children(service.pid)) == left | started


def test_what_takes_too_much_memory_is_ended_and_says_so(sqlite: Database) -> None:
    limits = ServiceLimits(prediction_memory_mib=24)
    with TestClient(create_app(sqlite, limits=limits), base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/rank", json={**stored(client, SHAPES), "proposals": 30_000})
        assert answer.status_code == 422, answer.text
        assert "24 MiB of memory" in answer.json()["detail"]
        assert "--limit prediction_memory_mib=NUMBER" in answer.json()["remedy"]


def test_a_process_starts_while_its_reader_fills_in_the_form_and_ends_with_its_time(
    sqlite: Database,
) -> None:
    app = create_app(sqlite)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        processes: AnswerProcesses = app.state.processes
        client.get("/predict")
        until(processes.pids, "a process")
        prepared = processes.pids()
        assert client.get("/predict/collectives?cluster=example-2x2").status_code == 200
        assert processes.pids() == prepared
        client.get("/predict")
        assert processes.pids() == prepared
        processes.limits = ServiceLimits(prediction_seconds=1)
        answer = client.post("/v1/rank", json={**stored(client, SHAPES[:200]), "proposals": 30_000})
        assert answer.status_code == 422
        assert "takes more than 1 s" in answer.json()["detail"]
        assert "--limit prediction_seconds=NUMBER" in answer.json()["remedy"]
        assert processes.pids() == []


def test_a_process_that_somebody_else_ends_is_replaced_and_one_that_waits_ends(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(sqlite)
    with TestClient(app, base_url="http://127.0.0.1") as client:

        def read_in_a_process(name: str) -> int:
            graph = replace(chain_graph(SHAPES), name=name)
            assert client.post("/v1/graphs", content=to_json(graph)).status_code == 201
            (pid,) = app.state.processes.pids()
            return int(pid)

        ended = read_in_a_process("one")
        os.kill(ended, signal.SIGKILL)
        # its parent learns of its end when the last of its threads has ended
        os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
        another = read_in_a_process("two")
        assert another != ended
        monkeypatch.setattr(answer_processes, "IDLE_SECONDS", 0.1)
        client.post("/v1/graphs", content=to_json(chain_graph(SHAPES)))
        until(lambda: not app.state.processes.pids(), "the end of one that waits")


def test_a_key_that_may_only_read_starts_nothing(sqlite: Database) -> None:
    app = create_app(sqlite, Access("a token"))
    key = make_key(sqlite, "reader", "read").text
    with TestClient(app, base_url="http://127.0.0.1") as client:
        headers = {"authorization": f"Bearer {key}"}
        asked = {"graph": "resnet50", "cluster": "example-4x1"}
        assert client.post("/v1/rank", json=asked, headers=headers).status_code == 403
        assert app.state.processes.pids() == []


def test_a_key_of_a_worker_prepares_no_prediction_and_has_no_documents_looked_up(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(AnswerProcesses, "prepare", lambda _, lane: asked.append(lane))
    heavy = {key: lambda *_: asked.append("load") for key in heavy_requests.READING}
    monkeypatch.setattr(heavy_requests, "READING", heavy)
    shown = {"authorization": f"Bearer {make_key(sqlite, 'worker', 'worker').text}"}
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        for path in ("/predict", "/predict/answer", "/models/vgg16"):
            assert client.get(path, headers=shown).status_code == 403, path
    assert asked == []


LARGE = [
    (method, re.sub(r"\{.*?\}", "7", route.path))
    for router in API
    for route in router.routes
    if isinstance(route, APIRoute) and route.body_field is not None
    for method in methods_of(route)
    if route.path.startswith(tuple(OF_BODIES))
]
"""Of what FastAPI reads and parses before any dependency runs: requests whose body may have MiB."""


def test_who_may_not_is_refused_before_a_large_body_is_read(sqlite: Database) -> None:
    app = create_app(sqlite)
    read: list[str] = []
    shown = {"authorization": f"Bearer {make_key(sqlite, 'reader', 'read').text}"}

    async def body(path: str) -> AsyncIterator[bytes]:
        read.append(path)
        yield b"{}"

    async def ask() -> set[int]:
        transport = httpx.ASGITransport(app)
        headers = {**shown, "content-type": "application/json"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answers = [
                await client.request(method, path, content=body(path), headers=headers)
                for method, path in LARGE
            ]
        return {answer.status_code for answer in answers}

    assert asyncio.run(ask()) == {403}
    assert read == []


@pytest.fixture
def asked_apart(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that came as far as a process."""
    paths: list[str] = []

    async def noted(*given: Any) -> ForwardedAnswer:
        paths.append(given[3]["path"])
        return ForwardedAnswer(204, [], b"")

    monkeypatch.setattr(AnswerProcesses, "answer", noted)
    return paths


def test_large_json_is_parsed_in_a_process_whoever_sends_it(
    sqlite: Database, asked_apart: list[str]
) -> None:
    large = json.dumps({"x": "x" * SMALL_JSON_BYTES})
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        for method, path in LARGE:
            headers = {"content-type": "application/json"}
            client.request(method, path, content=large, headers=headers)
    assert asked_apart == [path for _, path in LARGE]


def test_what_parses_a_tunings_documents_is_answered_in_a_process(
    sqlite: Database, asked_apart: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a form names them, however it is written."""
    tuning_id = finished(sqlite)
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        graph = client.get(f"/v1/tunings/{tuning_id}").json()["graph_id"]
        token = given_token(client)
        monkeypatch.setattr(heavy_requests, "SMALL_JSON_BYTES", 0)
        parts = ("why", "charts", "frameworks")
        paths = [f"/v1/tunings/{tuning_id}/buckets"]
        paths += [f"/tunings/{tuning_id}/{part}" for part in parts]
        for path in paths:
            client.get(path)
        assert asked_apart == paths
        asked_apart.clear()
        named = {"graph": graph, "cluster": "example-4x1"}
        like = {"graph": "resnet50", "cluster": "example-4x1", "like": tuning_id}
        for form in (named, like):
            client.post("/tunings", data={**form, **token})
        in_parts = {name: (None, value) for name, value in {**named, **token}.items()}
        client.post("/tunings", files=in_parts)
    assert asked_apart == ["/tunings"] * 3


def test_many_strategies_of_a_small_domain_are_parsed_in_a_process(
    sqlite: Database, asked_apart: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where they are parsed."""
    tuning_id = finished(sqlite)
    of_domain = heavy_requests._of_tuning(sqlite, {"tuning_id": tuning_id}, b"")
    monkeypatch.setattr(heavy_requests, "SMALL_JSON_BYTES", of_domain.json_bytes)
    paths = [f"/v1/tunings/{tuning_id}/{part}" for part in ("measured", "buckets")]
    paths += [f"/tunings/{tuning_id}/frameworks"]
    trials = f"/v1/queue/claims/{tuning_id}/1/trials"
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        assert client.get(f"/v1/tunings/{tuning_id}/domain").status_code == 200
        for path in paths:
            client.get(path)
        monkeypatch.setattr(heavy_requests, "SMALL_JSON_BYTES", 0)
        for first in (0, 1000):  # there are no more of them behind the last
            client.get(trials, params={"first": first})
    assert asked_apart == [*paths, trials]


def test_a_form_that_is_filled_in_from_a_tuning_with_large_pins_is_made_in_a_process(
    sqlite: Database, asked_apart: list[str]
) -> None:
    tuning_id = finished(sqlite)
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        assert client.get("/", params={"like": tuning_id}).status_code == 200
        with sqlite.writing() as session:
            session.get_one(TuningRow, tuning_id).space = "{}" + " " * SMALL_JSON_BYTES
        client.get("/", params={"like": tuning_id})
        assert client.get("/").status_code == 200
    assert asked_apart == ["/"]


def test_a_form_with_a_log_is_read_in_a_process_however_small_it_is(
    sqlite: Database, asked_apart: list[str]
) -> None:
    """The cluster that it names may be large."""
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        sent = {"cluster": "example-4x1", **given_token(client)}
        client.post("/clusters/calibrate", files={"document": ("log", b"#")}, data=sent)
    assert asked_apart == ["/clusters/calibrate"]


def test_proposals_for_a_large_domain_are_described_in_a_process(
    sqlite: Database, asked_apart: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few they are: the domain is parsed for them."""
    held, _ = claimed(sqlite, small_request())
    body = json.dumps({"proposals": []})
    monkeypatch.setattr(heavy_requests, "SMALL_JSON_BYTES", 2 * len(body))
    path = f"/v1/queue/claims/{held.job_id}/{held.fence}/proposals"
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        client.post(path, content=body)
    assert asked_apart == [path]


def test_requests_for_predictions_may_be_as_large_as_those_for_tunings(
    client: httpx.Client,
) -> None:
    """A profile of 8,000 operations has 250 kB and more."""
    body = json.dumps({"graph": "x" * 2_000_000})
    for path in ("/v1/tunings", "/v1/rank", "/v1/predict", "/v1/compare", "/v1/scale"):
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422, path


def test_a_large_request_finds_the_launchers_that_its_service_offers(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOSYNC_PREFIX", "ssh {host}")
    monkeypatch.setattr(heavy_requests, "SMALL_JSON_BYTES", 0)
    asked = {"graph": "resnet50", "cluster": "example-4x1", "launcher": "command"}
    limits = ServiceLimits(reading_seconds=120)
    with TestClient(create_app(sqlite, limits=limits), base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/tunings", json=asked)
    assert answer.status_code == 202, answer.text


def test_equal_documents_at_once_stall_nobody(service: Service, client: httpx.Client) -> None:
    """Others are answered between any two of them, or nearly: each client asks again at once, so
    all are counted over the same time, however slow the machine is."""
    body = b"[" + b"1," * 30_000 + b"]"
    statuses: list[int] = []
    done = threading.Event()

    def post() -> None:
        with httpx.Client(base_url=service.address, timeout=PATIENCE_SECONDS) as other:
            while not done.is_set():
                statuses.append(other.post("/v1/clusters", content=body).status_code)

    posting = [threading.Thread(target=post) for _ in range(8)]
    for each in posting:
        each.start()
    answered = 0
    while len(statuses) < 64:
        assert client.get("/v1/health").is_success
        answered += 1
    done.set()
    for each in posting:
        each.join()
    assert set(statuses) == {422}
    assert answered > 64 / 4  # 8 where one had to wait for as many as wait at once
