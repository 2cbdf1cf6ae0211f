"""Pausing, resuming, tags and notes, sorting and exported settings over REST."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from autosync.api.db import Database
from autosync.api.engine import job_queue
from autosync.api.engine.submission import enqueue
from autosync.api.http import app
from autosync.api.spec import LONGEST_NOTE
from autosync.api.views.documents import CLUSTER_SORTS, GRAPH_SORTS
from autosync.api.views.reports import TRIAL_SORTS, TUNING_SORTS
from autosync.exports import EXPORTS
from tests.api.http.forms import given_token
from tests.api.http.rest_answers import refused
from tests.api.sample import claimed, finished, small_request
from tests.waiting import until

REQUEST = small_request()


def test_pause_and_resume(client: TestClient, sqlite: Database) -> None:
    tuning_id = enqueue(sqlite, REQUEST)
    base = f"/v1/tunings/{tuning_id}"
    assert client.post(f"{base}/pause").json() == {"id": tuning_id, "state": "paused"}
    assert client.get(base).json()["state"] == "paused"
    assert client.get("/v1/tunings?state=paused").json()["total"] == 1
    assert client.get(f"/tunings/{tuning_id}").status_code == 200  # the dashboard's page
    assert client.post(f"{base}/resume").json()["state"] == "queued"
    held = job_queue.claim(sqlite, "a")
    assert held is not None
    assert client.post(f"{base}/pause").json()["state"] == "pausing"
    assert client.post(f"{base}/resume").json()["state"] == "running"
    job_queue.fail(sqlite, held, "no luck")
    refused(client.post(f"{base}/pause"), 409, "is failed and cannot be paused")
    assert client.post(f"{base}/resume").json()["state"] == "queued"
    refused(client.post(f"/v1/tunings/{'0' * 32}/pause"), 404)


def test_the_page_pauses_and_resumes(client: TestClient, sqlite: Database) -> None:
    path = f"/tunings/{enqueue(sqlite, REQUEST)}"
    assert f'action="{path}/pause"' in client.get(path).text
    client.post(f"{path}/pause", data=given_token(client, path))
    paused = client.get(path).text
    assert "This tuning is paused." in paused
    assert f'action="{path}/pause"' not in paused
    client.post(f"{path}/resume", data=given_token(client, path))
    assert client.get(f"/v1{path}").json()["state"] == "queued"


def test_tags_and_notes(client: TestClient, sqlite: Database) -> None:
    tuning_id = finished(sqlite, REQUEST)
    path = f"/v1/tunings/{tuning_id}"
    first = client.patch(path, json={"tags": ["paper", "v100", "paper"], "note": "run 3"}).json()
    assert (first["tags"], first["note"], first["archived"]) == (["paper", "v100"], "run 3", False)
    second = client.patch(path, json={"archived": True}).json()
    assert (second["tags"], second["note"], second["archived"]) == (
        ["paper", "v100"],
        "run 3",
        True,
    )
    assert client.patch(path, json={"tags": []}).json()["tags"] == []
    assert client.patch(path, json={}).json()["note"] == "run 3"
    for body, thing in (
        ({"tags": ["two words"]}, "tags.0"),
        ({"tags": ["x" * 41]}, "tags.0"),
        ({"tags": [str(i) for i in range(11)]}, "tags"),
        ({"tags": ["a\u0007b"]}, "tags"),
        ({"note": "x" * 2001}, "note"),
        ({"archived": "yes"}, "archived"),
        ({"tag": ["a"]}, "tag"),
    ):
        assert refused(client.patch(path, json=body), 422)["thing"] == thing
    held, _ = claimed(sqlite, REQUEST)
    running = f"/v1/tunings/{held.job_id}"
    problem = client.patch(running, json={"archived": True, "note": "kept?"})
    refused(problem, 409, "cannot be archived")
    assert client.get(running).json()["note"] == ""


def test_lines_of_a_note_count_the_same_in_a_form(client: TestClient, sqlite: Database) -> None:
    """Browsers send each line break as two characters."""
    path = f"/tunings/{enqueue(sqlite, REQUEST)}"
    note = "\n".join("x" * (LONGEST_NOTE // 2)) + "x"
    assert len(note) == LONGEST_NOTE
    sent = {"note": note.replace("\n", "\r\n"), **given_token(client, path)}
    assert client.post(f"{path}/notes", data=sent).status_code == 200
    assert client.get(f"/v1{path}").json()["note"] == note


def test_lists_are_filtered_and_sorted(client: TestClient, sqlite: Database) -> None:
    first, second = finished(sqlite, REQUEST), finished(sqlite, small_request(7))
    client.patch(f"/v1/tunings/{first}", json={"tags": ["paper"]})
    client.patch(f"/v1/tunings/{second}", json={"archived": True})

    def ids(query: str) -> list[str]:
        return [row["id"] for row in client.get(f"/v1/tunings?{query}").json()["items"]]

    assert ids("sort=created") == [first, second]
    assert ids("sort=-created") == ids("") == [second, first]
    assert ids("tag=paper") == ids("archived=false") == [first]
    assert ids("archived=true") == [second]
    problem = refused(client.get("/v1/tunings?sort=colour"), 422, "best_seconds")
    assert problem["thing"] == "sort"
    page = client.get("/v1/tunings?sort=created&limit=1").json()
    rest = client.get(f"/v1/tunings?sort=created&limit=1&cursor={page['next']}").json()
    assert rest["items"][0]["id"] == second
    refused(client.get(f"/v1/tunings?limit=1&cursor={page['next']}"), 422, "sorted by")
    trials = client.get(f"/v1/tunings/{first}/trials?sort=-position&limit=2").json()
    assert [row["position"] for row in trials["items"]] == [13, 12]


def test_every_sort_that_is_documented_is_one(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path, keys in (
        ("/v1/tunings", TUNING_SORTS),
        ("/v1/tunings/{tuning_id}/trials", TRIAL_SORTS),
        ("/v1/graphs", GRAPH_SORTS),
        ("/v1/clusters", CLUSTER_SORTS),
    ):
        parameters = {each["name"]: each["schema"] for each in paths[path]["get"]["parameters"]}
        assert sorted(parameters["sort"]["enum"]) == sorted([*keys, *(f"-{key}" for key in keys)])
        assert parameters["sort"]["default"] in parameters["sort"]["enum"]


def test_settings_of_frameworks(client: TestClient, sqlite: Database) -> None:
    tuning_id = finished(sqlite, REQUEST)
    base = f"/v1/tunings/{tuning_id}"
    rows: list[dict[str, Any]] = client.get(f"{base}/strategies").json()["items"]
    ddp = next(row["strategy_id"] for row in rows if row["is_ddp"])
    answer = client.get(f"{base}/settings?for=ddp&strategy={ddp}")
    found = answer.json()
    assert (found["framework"], found["strategy_id"], found["deviations"]) == ("ddp", ddp, [])
    assert "DistributedDataParallel(model" in found["snippet"]
    seen = {"If-None-Match": answer.headers["etag"]}
    assert client.get(f"{base}/settings?for=ddp&strategy={ddp}", headers=seen).status_code == 304
    two_lines = client.get(f"{base}/settings?for=autosync").json()
    assert two_lines["strategy_id"] == client.get(base).json()["result"]["strategy_id"]
    assert "autosync.distribute" in two_lines["snippet"]
    refused(client.get(f"{base}/settings?for=fsdp2&strategy={ddp}"), 409, "reduce-scattered")
    problem = refused(client.get(f"{base}/settings?for=horovod"), 422, *EXPORTS)
    assert problem["thing"] == "for"
    refused(client.get(f"{base}/settings?for=ddp&strategy={'0' * 32}"), 404)
    held, _ = claimed(sqlite, REQUEST)
    path = f"/v1/tunings/{held.job_id}/settings?for=ddp"
    refused(client.get(path), 409, "no confirmed answer")


def test_a_service_without_workers_ends_what_was_cancelled_as_its_worker_died(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its page has no button meanwhile, and clients wait for the end."""
    monkeypatch.setattr(app, "UPKEEP_SECONDS", 0.01)
    held, _ = claimed(sqlite, REQUEST)
    assert job_queue.cancel(sqlite, held.job_id) == "cancelling"
    job_queue.expire(sqlite, held)
    with TestClient(app.create_app(sqlite), base_url="http://127.0.0.1") as client:
        path = f"/v1/tunings/{held.job_id}"
        until(lambda: client.get(path).json()["state"] == "cancelled", "the end of the tuning")


def test_a_service_whose_database_is_away_looks_again_and_says_so_once(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[Database] = []

    def look(database: Database) -> None:
        looks.append(database)
        raise OperationalError("", {}, ValueError("the database is away"))

    monkeypatch.setattr(app, "UPKEEP_SECONDS", 0.01)
    monkeypatch.setattr(app, "end_abandoned", look)
    with TestClient(app.create_app(sqlite), base_url="http://127.0.0.1"):
        until(lambda: len(looks) > 2, "further looks")
    (told,) = (each.getMessage() for each in caplog.records if each.name == app.log.name)
    assert "the database is away" in told
