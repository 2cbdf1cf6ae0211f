"""Large documents are read in a process of their own, and cost the service nothing."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from autosync.api.db import Database
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.app import create_app
from autosync.api.http.heavy_requests import SMALL_JSON_BYTES
from autosync.documents import to_json
from autosync.graph import ModelGraph
from autosync.units import MIB
from tests.api.databases import opened
from tests.api.http.forms import given_token
from tests.api.http.serving import children, served
from tests.domains import chain_graph, grid_cluster

NODE = "  - {address: n%d, devices: [{type: t4}], bandwidth_gbps: 9.56, latency_us: 50}\n"
VARIABLES, NODES = 2000, 2999
LONG_SECONDS = 300.0
"""Not what it takes, but when to give up."""


def cluster_text(nodes: int) -> str:
    return "name: large\nnodes:\n" + "".join(NODE % number for number in range(nodes))


def large_graph(variables: int = VARIABLES) -> ModelGraph:
    graph = chain_graph(((4, 4),) * variables)
    assert len(to_json(graph)) > SMALL_JSON_BYTES
    return graph


@pytest.fixture(scope="module")
def client(module_url: str) -> Iterator[TestClient]:
    """Its service starts a process for large documents once."""
    limits = ServiceLimits(variables=VARIABLES, nodes=NODES, cluster_mib=1)
    with opened(module_url) as database:
        app = create_app(database, limits=limits)
        with TestClient(app, base_url="http://127.0.0.1") as client:
            yield client


def test_a_document_that_takes_too_long_is_refused_while_others_are_served(
    sqlite_url: str,
) -> None:
    with served(sqlite_url, "", "reading_seconds=1", "cluster_mib=16") as service:
        answers: list[httpx.Response] = []

        def post() -> None:
            url = f"{service.address}/v1/clusters"
            answers.append(httpx.post(url, content=cluster_text(100_000), timeout=LONG_SECONDS))

        posting = threading.Thread(target=post)
        posting.start()
        answered, seen = 0, False
        with httpx.Client(base_url=service.address, timeout=LONG_SECONDS) as other:
            while posting.is_alive():
                assert other.get("/v1/health").is_success
                answered += 1
                seen = seen or bool(children(service.pid))
                posting.join(0.02)  # who reads has the lowest priority
        assert seen
        assert answered > 5
        assert answers[0].status_code == 422
        assert "1 processor seconds" in answers[0].json()["detail"]
        assert "--limit reading_seconds=NUMBER" in answers[0].json()["remedy"]


def test_a_document_that_takes_too_much_memory_is_refused(sqlite: Database) -> None:
    app = create_app(sqlite, limits=ServiceLimits(reading_mib=1, cluster_mib=8))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/clusters", content=cluster_text(30_000))
        assert answer.status_code == 422
        assert "1 MiB of memory" in answer.json()["detail"]
        assert "--limit reading_mib=NUMBER" in answer.json()["remedy"]
        assert client.get("/v1/clusters").json()["items"] == []


def test_large_documents_are_stored_and_refused_as_small_ones_are(client: TestClient) -> None:
    graph = large_graph()
    posted = client.post("/v1/graphs", content=to_json(graph))
    assert posted.status_code == 201, posted.text
    assert posted.json() == {**posted.json(), "id": graph.id, "name": "chain"}
    assert client.get(posted.headers["location"]).text == to_json(graph)
    cluster = client.post("/v1/clusters", content=to_json(grid_cluster())).json()["id"]
    body: dict[str, Any] = {"graph": graph.id, "cluster": cluster, "budget": 3}
    started = client.post("/v1/tunings", json=body)
    assert started.status_code == 202, started.text
    assert started.json()["graph_id"] == graph.id
    unknown = client.post("/v1/tunings", json={**body, "cluster": "nowhere"})
    assert unknown.status_code == 404
    assert "example-4x1" in unknown.json()["remedy"]


def test_counts_beyond_a_limit_are_refused_by_its_name(client: TestClient) -> None:
    many = client.post("/v1/graphs", content=to_json(large_graph(VARIABLES + 1)))
    assert many.status_code == 422
    assert "this service allows 2000 variables" in many.json()["detail"]
    assert "--limit variables=NUMBER" in many.json()["remedy"]
    many = client.post("/v1/clusters", content=cluster_text(NODES + 1))
    assert many.status_code == 422
    assert "--limit nodes=NUMBER" in many.json()["remedy"]


def form_upload(client: TestClient, path: str, document: str) -> Any:
    file = {"document": ("document", document.encode())}
    token = given_token(client, path)
    return client.post(path, files=file, data=token, follow_redirects=False)


def test_a_form_takes_what_rest_takes(client: TestClient) -> None:
    graph = replace(large_graph(), name="uploaded")
    shown = form_upload(client, "/models", to_json(graph))
    assert (shown.status_code, shown.headers["location"]) == (303, f"/models/{graph.id}")
    assert client.get(f"/v1/graphs/{graph.id}").text == to_json(graph)


def test_a_form_is_limited_as_rest_is(client: TestClient) -> None:
    """The file alone, where what is around it brings it above; and the whole while it arrives."""
    before = client.get("/v1/clusters").json()
    padding = "#" * MIB
    file = form_upload(client, "/clusters", f"{cluster_text(2)}{padding}")
    assert file.status_code == 422
    assert "the limit is 1 MiB" in file.text
    assert "--limit cluster_mib=NUMBER" in file.text
    whole = form_upload(client, "/clusters", f"{cluster_text(2)}{padding}{padding}")
    assert whole.status_code == 413
    assert "--limit cluster_mib=MIB" in whole.text
    assert client.get("/v1/clusters").json() == before
