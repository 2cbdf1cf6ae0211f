"""`autosync.Client` on a live service: every route, and what it does when things go wrong."""

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest

from autosync import Client
from autosync.api.client.service_errors import ServiceError, ServiceUnreachable
from autosync.api.client.service_queue import ServiceQueue
from autosync.api.db import Database
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import add_event
from autosync.api.engine.leases import ServiceAway
from autosync.bundle import load_bundle
from autosync.domain import Optimizer
from autosync.errors import AutosyncError, InvalidInput
from autosync.search.loop.outcome import TuningEvent
from autosync.search.space import Space
from tests.api.checkpoints import checkpoint, opinionated
from tests.api.client.scripted_server import cutting, scripted
from tests.api.databases import opened
from tests.api.http.serving import Service, served
from tests.api.sample import claimed, finished, small_request
from tests.autosync.interop.test_nccl_tests import NEW
from tests.domains import chain_graph, grid_cluster

TOKEN = "open sesame"
PROBLEM = {"detail": "not now.", "thing": "queue", "value": "7", "remedy": "Wait.", "title": "No"}


@pytest.fixture(scope="module")
def service(module_url: str) -> Iterator[Service]:
    with served(module_url, TOKEN) as service:
        yield service


@pytest.fixture
def database(module_url: str) -> Iterator[Database]:
    with opened(module_url) as database:
        yield database


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.address, TOKEN) as client:
        yield client


def test_every_route_has_a_method(client: Client, database: Database, tmp_path: Path) -> None:
    sent: set[tuple[str, str]] = set()
    client.http.event_hooks = {
        "request": [lambda request: sent.add((request.method.lower(), request.url.path))]
    }
    tuning_id = finished(database)
    call_documents(client)
    call_tunings(client, tuning_id, tmp_path)
    call_simulators(client, tmp_path)
    call_the_rest(client, tmp_path)
    paths = client.http.get("/openapi.json").json()["paths"]
    missing = {
        (method, path)
        for path, operations in paths.items()
        for method in operations
        if not path.startswith("/v1/queue")  # of workers: test_service_queue
        and not any(used == method and fits(path, at, paths) for used, at in sent)
    }
    assert missing == set()


def fits(template: str, path: str, templates: dict[str, object]) -> bool:
    """Whether a request to the path goes by the template: one without a blank is exact."""
    if path in templates:
        return path == template
    return re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path) is not None


def call_documents(client: Client) -> None:
    graph, cluster = chain_graph(), grid_cluster()
    stored = client.graphs.post(graph)
    assert client.graphs.post(graph) == stored
    assert client.graphs.get(stored.id) == graph
    assert stored.id in {row.id for row in client.graphs.list(sort="parameters").items}
    kept = client.clusters.post(cluster)
    assert client.clusters.get(kept.id) == cluster
    assert [row.id for row in client.clusters.list(limit=1).items] == [kept.id]
    measured = client.clusters.calibrate("aws-p5-48xlarge-x4", NEW, ranks=4)
    assert measured.curves[0].most_bytes == 2**30
    assert client.clusters.get(measured.id).curves
    table = client.collectives(cluster, sizes_bytes=[2**20], operation="broadcast")
    assert (table.operation, len(table.rows)) == ("broadcast", 1)
    job = client.scale(graph, cluster, (1, 2), "zero1", recompute=True)
    assert [point.nodes for point in job.points] == [1, 2]
    assert client.schema("Strategy")["title"] == "Strategy"
    assert "Bundle" in client.schemas()


def call_tunings(client: Client, tuning_id: str, folder: Path) -> None:
    tunings = client.tunings
    started = tunings.start(
        chain_graph(), grid_cluster(), budget=3, space=Space(factors=False), launcher="local"
    )
    assert (started.state, started.settings["budget"]) == ("queued", 3)
    assert tunings.pause(started.id).state == "paused"
    assert tunings.resume(started.id).state == "queued"
    assert tunings.cancel(started.id).state == "cancelled"
    assert [row.id for row in tunings.list(limit=1).items] == [started.id]
    assert [row.id for row in tunings.list(limit=1, sort="created").items] == [tuning_id]
    found = tunings.wait(tuning_id)
    assert found == tunings.get(tuning_id)
    assert found.result is not None
    ranked = tunings.strategies(tuning_id)
    assert tunings.strategies(tuning_id, limit=2).items == ranked.items[:2]
    assert client.strategies.get(ranked.items[0].strategy_id).id == ranked.items[0].strategy_id
    assert len(tunings.trials(tuning_id).items) == found.progress.trials
    assert [event.state for event in tunings.events(tuning_id)][-1] == "finished"
    tagged = tunings.update(tuning_id, tags=["paper", "a"], note="For the talk", archived=True)
    assert (tagged.tags, tagged.note, tagged.archived) == (["paper", "a"], "For the talk", True)
    assert [row.id for row in tunings.list(tag="paper", archived=True).items] == [tuning_id]
    assert tunings.update(tuning_id, note="").tags == ["paper", "a"]
    assert tunings.bucket_curve(tuning_id).items == []  # of another space
    tunings.save_bundle(tuning_id, folder / "best.json")
    assert load_bundle(folder / "best.json") == tunings.bundle(tuning_id)
    ddp = next(row.strategy_id for row in ranked.items if row.is_ddp)
    assert tunings.settings(tuning_id, "ddp", strategy=ddp).deviations == ()
    assert tunings.timeline(tuning_id).strategy_id == found.result.strategy_id
    assert tunings.trace(tuning_id, strategy=ddp)["traceEvents"]
    assert tunings.domain(tuning_id).id == found.domain_id
    measured = tunings.measured(tuning_id)
    assert {each.strategy.id for each in measured.trials} <= {
        row.strategy_id for row in ranked.items
    }
    again = tunings.start(chain_graph(), grid_cluster(), earlier=measured, launcher="local")
    assert [row.id for row in tunings.list(prefix=again.id[:8]).items] == [again.id]
    assert tuning_id in [row.id for row in tunings.list(recorded=ddp).items]


def call_simulators(client: Client, folder: Path) -> None:
    simulators = client.simulators
    card, weights = checkpoint(folder, opinionated())
    assert simulators.put("mine", card, weights).name == "mine"
    assert [row.name for row in simulators.list().items] == ["mine"]
    assert simulators.card("mine")["encoder"] == "none"
    assert simulators.weights("mine") == weights
    simulators.delete("mine")
    assert simulators.versions().in_use == 0
    with pytest.raises(ServiceError) as unknown:
        simulators.promote(7)
    assert unknown.value.status == 404
    training = simulators.train()
    assert simulators.training(training.id) == training
    assert training in simulators.trainings().items


def call_the_rest(client: Client, folder: Path) -> None:
    assert client.rank("resnet50", "example-4x1", proposals=8, top=2).items[0].rank == 1
    compared = client.compare(
        chain_graph(),
        {"example-4x1": 2.0, grid_cluster(): 2.0},
        proposals=8,
        optimizer=Optimizer("adamw"),
    )
    assert {each.cluster for each in compared.items} == {"example-4x1", "grid"}
    assert compared.items[0].cost_per_million_samples is not None
    made = client.keys.add("bob", "read", days=1)
    assert made.key.startswith(f"{made.id}.")
    assert made.id in [each.id for each in client.keys.list(limit=None).items]
    assert client.keys.revoke(made.id).revoked_at is not None
    predicted = client.predict("resnet50", "example-4x1", ["ddp"], compute_is_known=True)
    assert predicted.items[0].strategy == "ddp"
    assert client.limits().budget == 1000
    assert client.health().status == "ok"
    assert client.ready().workers == 0  # which the service answers with 503
    rows = list(client.runtimes.rows(graph="chain"))
    for kind in ("csv", "jsonl", "parquet", "zip"):
        client.runtimes.save(folder / f"runtimes.{kind}", cluster="grid")
    assert len(rows) == len(pd.read_parquet(folder / "runtimes.parquet")) > 0
    with pytest.raises(InvalidInput, match="no format of runtimes"):
        client.runtimes.save(folder / "runtimes.xlsx")


def test_a_refusal_has_the_services_words(client: Client) -> None:
    with pytest.raises(ServiceError) as caught:
        client.tunings.start("resnet51", "example-4x1")
    error = caught.value
    assert (error.status, error.title, error.thing) == (404, "Not found", "graph")
    assert "resnet50" in error.remedy
    assert error.request_id
    assert isinstance(error, AutosyncError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.status, again.message, again.remedy) == (404, error.message, error.remedy)


def test_who_has_no_token_is_told(service: Service) -> None:
    with Client(service.address, "wrong") as stranger, pytest.raises(ServiceError) as caught:
        stranger.tunings.list()
    assert caught.value.status == 401


def test_the_token_comes_from_the_environment(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOSYNC_TOKEN", TOKEN)
    with Client(service.address) as client:
        assert client.tunings.list(limit=1) is not None


def test_a_tuning_that_goes_on_is_not_waited_for_longer(client: Client, database: Database) -> None:
    held, _ = claimed(database, small_request())
    with pytest.raises(TimeoutError, match="is running after 0"):
        client.tunings.wait(held.job_id, timeout_seconds=0.0)
    job_queue.end_cancelled(database, held)
    assert client.tunings.wait(held.job_id).state == "cancelled"


def test_all_events_that_there_are_come_without_following(
    service: Service, database: Database
) -> None:
    held, _ = claimed(database, small_request())
    with database.writing() as session:
        for number in range(1000):
            add_event(session, held.job_id, TuningEvent("search", f"event {number}", number, 1000))
    port = int(service.address.rpartition(":")[2])
    with (
        cutting(port, [30_000, 30_000]) as address,
        Client(address, TOKEN, sleep=lambda seconds: None) as client,
    ):
        found = list(client.tunings.events(held.job_id, follow=False))
        assert [event.message for event in found] == [f"event {n}" for n in range(1000)]
        assert {event.state for event in found} == {"running"}
        rest = client.tunings.events(held.job_id, after=found[-3].id, follow=False)
        assert list(rest) == found[-2:]
    job_queue.end_cancelled(database, held)


def test_events_go_on_where_the_connection_was_lost(service: Service, database: Database) -> None:
    tuning_id = finished(database)
    with Client(service.address, TOKEN) as client:
        story = list(client.tunings.events(tuning_id))
    waited: list[float] = []
    port = httpx.URL(service.address).port
    assert port is not None
    with (
        cutting(port, [900, 1500, 700]) as address,
        Client(address, TOKEN, sleep=waited.append) as client,
    ):
        assert list(client.tunings.events(tuning_id)) == story
        assert len(waited) == 3
        assert list(client.tunings.events(tuning_id, after=story[4].id)) == story[5:]
    assert [event.kind for event in story[-8:]] == ["confirm"] * 8


def test_a_stream_that_is_cut_while_nothing_happens_is_made_again_as_often_as_it_takes() -> None:
    """As by a proxy that lets no connection live for more than a minute, while a tuning waits."""
    streams = [*[": still here\n\n"] * 20, "event: end\ndata: {}\n\n"]
    kind = {"Content-Type": "text/event-stream"}

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=kind, text=streams.pop(0))

    waited: list[float] = []
    with Client(sleep=waited.append, transport=httpx.MockTransport(answer)) as client:
        assert list(client.tunings.events("3f2a90c1")) == []
        assert (streams, waited) == ([], [0.25] * 20)
        streams += [""] * 5
        with pytest.raises(ServiceUnreachable, match="the stream ended"):
            list(client.tunings.events("3f2a90c1"))
    assert streams == []


def test_a_service_that_refuses_events_for_now_says_when_and_why() -> None:
    busy = (503, {"Retry-After": "5", "Content-Type": "application/problem+json"}, PROBLEM)
    waited: list[float] = []
    with (
        scripted(busy) as script,
        Client(script.address, sleep=waited.append) as client,
        pytest.raises(ServiceError, match="not now") as caught,
    ):
        list(client.tunings.events("3f2a90c1"))
    assert (caught.value.status, waited) == (503, [5.0] * 4)


def test_what_is_away_is_asked_again() -> None:
    waited: list[float] = []
    busy = (503, {"Retry-After": "5", "Content-Type": "application/problem+json"}, PROBLEM)
    full = (429, {"Retry-After": "7"}, PROBLEM)
    answer: tuple[int, dict[str, str], Any] = (200, {}, {"Strategy": "/v1/schemas/Strategy"})
    with scripted((0, {}, ""), busy, full, answer) as script:
        with Client(script.address, sleep=waited.append) as client:
            assert client.schemas() == {"Strategy": "/v1/schemas/Strategy"}
        assert waited == [0.25, 5.0, 7.0]
        assert len(script.seen) == 4


def test_what_would_happen_twice_is_not_sent_twice() -> None:
    busy = (503, {"Retry-After": "1"}, PROBLEM)
    waited: list[float] = []
    with scripted(busy) as script, Client(script.address, sleep=waited.append) as client:
        with pytest.raises(ServiceError, match="not now") as caught:
            client.simulators.train()
        assert caught.value.retry_seconds == 1.0
        assert len(script.seen) == 1
        with pytest.raises(ServiceError, match="not now"):
            client.tunings.start("resnet50", "example-4x1")
        keys = {headers["Idempotency-Key"] for _, _, headers in script.seen[1:]}
        assert (len(script.seen), len(keys)) == (6, 1)
    with scripted((0, {}, "")) as script, Client(script.address, sleep=waited.append) as client:
        with pytest.raises(ServiceUnreachable):
            client.simulators.train()
        assert len(script.seen) == 1


def test_a_redirect_is_no_answer(tmp_path: Path) -> None:
    """As of a proxy that leads from http to https."""
    elsewhere = (308, {"Location": "https://tuner.example.com/v1"}, "moved")
    with scripted(elsewhere) as script, Client(script.address) as client:
        for call in (
            lambda: client.tunings.get("3f2a90c1"),
            lambda: client.tunings.save_bundle("3f2a90c1", tmp_path / "best.json"),
            lambda: client.simulators.delete("mine"),
            lambda: list(client.runtimes.rows()),
            lambda: list(client.tunings.events("3f2a90c1")),
        ):
            with pytest.raises(ServiceError, match="answered 308") as caught:
                call()
            assert "https://tuner.example.com" in caught.value.remedy
        assert len(script.seen) == 5
    assert not any(tmp_path.iterdir())


def test_a_web_page_is_no_answer(tmp_path: Path) -> None:
    """As of a proxy that says that the service is down for an hour, or of another server."""
    page = (200, {"Content-Type": "text/html; charset=utf-8"}, "back soon")
    with scripted(page) as script, Client(script.address) as client:
        for call in (
            lambda: client.tunings.get("3f2a90c1"),
            lambda: client.simulators.card("mine"),
            lambda: client.tunings.save_bundle("3f2a90c1", tmp_path / "best.json"),
            lambda: client.runtimes.save(tmp_path / "runtimes.csv"),
            lambda: list(client.tunings.events("3f2a90c1")),
        ):
            with pytest.raises(ServiceUnreachable, match="a web page comes in place"):
                call()
        with pytest.raises(ServiceAway):  # so a worker asks again later
            ServiceQueue(client).claim("here:1", 15.0, job_queue.Abilities(("local",), 0))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("token", ["s3cret\n", "s3cr\u00eat"])
def test_a_key_that_no_header_carries_is_refused_and_not_shown(token: str) -> None:
    """A file that holds a key ends with a line's end."""
    with pytest.raises(InvalidInput, match="no printable ASCII") as caught:
        Client("http://127.0.0.1:9", token)
    assert "s3cr" not in f"{caught.value} {caught.value.value}"


def test_a_long_pause_is_left_to_the_caller() -> None:
    with (
        scripted((429, {"Retry-After": "600"}, PROBLEM)) as script,
        Client(script.address) as client,
        pytest.raises(ServiceError) as caught,
    ):
        client.health()
    assert caught.value.retry_seconds == 600.0


def test_where_no_service_is() -> None:
    waited: list[float] = []
    with (
        Client("http://127.0.0.1:9", attempts=3, sleep=waited.append) as client,
        pytest.raises(ServiceUnreachable, match=r"no service answers at 'http://127\.0\.0\.1:9'"),
    ):
        client.simulators.train()  # never sent, so it is tried again
    assert waited == [0.25, 0.5]
    for address in ("tuner.example.com", "ftp://tuner", "http://[::1"):
        with pytest.raises(InvalidInput, match="no address of a service"):
            Client(address)


def test_importing_autosync_loads_no_client() -> None:
    code = (
        "import sys, autosync\n"
        "assert not {'httpx', 'torch', 'sqlalchemy'} & set(sys.modules), 'import'\n"
        "autosync.Client\n"
        "assert not {'torch', 'sqlalchemy', 'numba', 'fastapi'} & set(sys.modules), 'Client'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
