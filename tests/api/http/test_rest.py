"""Every route and what it answers, what it does not send again, what it starts once; bad input is
in `test_refused_requests`."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import text

from autosync.api.db import Database
from autosync.api.engine import job_queue
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.engine.submission import load_request
from autosync.api.http.access.access_rules import Access
from autosync.api.http.app import create_app
from autosync.api.http.openapi import DOCUMENTS
from autosync.api.views.dashboard.tuning_form import form_of_tuning
from autosync.bundle import Bundle
from autosync.cluster.cluster_file import load_cluster
from autosync.documents import from_json, to_data, to_json
from autosync.domain import Domain
from autosync.models import bundled
from autosync.search.loop.earlier_document import EarlierTrials
from tests.api.http.rest_answers import YAML, posted, refused
from tests.api.sample import claimed, finished, run_search, small_request, waiting
from tests.domains import chain_graph

REQUEST = small_request()
GRAPH = chain_graph()


def test_a_graph_posted_twice_is_one(client: TestClient, sqlite: Database) -> None:
    first = client.post("/v1/graphs", content=to_json(GRAPH))
    again = client.post("/v1/graphs", content=json.dumps(to_data(GRAPH), indent=3))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json() == {**first.json(), "id": GRAPH.id, "name": "chain"}
    assert first.headers["location"] == f"/v1/graphs/{GRAPH.id}"
    assert client.get(first.headers["location"]).text == to_json(GRAPH)
    assert [item["id"] for item in client.get("/v1/graphs").json()["items"]] == [GRAPH.id]
    assert "bert_base" in {spec["name"] for spec in client.get("/v1/graphs").json()["bundled"]}


def test_a_cluster_as_yaml_and_as_json(client: TestClient) -> None:
    as_yaml = client.post(
        "/v1/clusters", content=YAML, headers={"content-type": "application/yaml"}
    )
    assert as_yaml.status_code == 201
    stored = client.get(as_yaml.headers["location"])
    as_json = client.post("/v1/clusters", content=stored.text)
    assert as_json.status_code == 200
    assert as_json.json()["id"] == as_yaml.json()["id"]
    listed = client.get("/v1/clusters").json()
    assert [item["world_size"] for item in listed["items"]] == [2]
    assert "example-4x1" in listed["bundled"]


def test_what_is_bundled_is_read_by_its_name(client: TestClient) -> None:
    """As the lists have it: to pin a variable one needs the names in the graph."""
    graph, cluster = client.get("/v1/graphs/resnet50"), client.get("/v1/clusters/example-4x1")
    assert graph.text == to_json(bundled("resnet50"))
    assert cluster.text == to_json(load_cluster("example-4x1"))
    for answer in (graph, cluster):
        assert "immutable" not in answer.headers["cache-control"]
    refused(client.get("/v1/graphs/resnet51"), 404, "no graph")


def test_a_tuning_from_start_to_cancel(client: TestClient, ids: dict[str, str]) -> None:
    pin = {
        "variable": "v0",
        "partition": {"axis": 0, "lengths": [32, 32]},
        "shards": [{"kind": "all_reduce", "group": 0}, {"kind": "all_reduce", "group": 1}],
    }
    body = {**ids, "budget": 5, "byte_scale": 0.25, "space": {"factors": False, "pins": [pin]}}
    posted = client.post("/v1/tunings", json=body)
    assert posted.status_code == 202
    location = posted.headers["location"]
    tuning = client.get(location).json()
    assert tuning == posted.json()
    assert (tuning["state"], tuning["graph"], tuning["world_size"]) == ("queued", "chain", 4)
    assert (tuning["settings"]["budget"], tuning["byte_scale"]) == (5, 0.25)
    assert tuning["profile_source"] == "estimated"
    assert client.get("/v1/tunings").json()["items"] == [tuning]
    assert client.get("/v1/health").json()["queued"] == 1
    assert client.post(f"{location}/cancel").json()["state"] == "cancelled"
    assert client.get(location).json()["state"] == "cancelled"


def test_a_bundled_model_on_a_bundled_cluster(client: TestClient) -> None:
    body = {"graph": "ResNet50", "cluster": "example-4x1", "budget": 1}
    tuning = client.post("/v1/tunings", json=body).json()
    assert (tuning["graph"], tuning["batch_size"], tuning["world_size"]) == ("resnet50", 32, 4)


def test_a_finished_tuning(client: TestClient, sqlite: Database) -> None:
    tuning_id = finished(sqlite, REQUEST)
    base = f"/v1/tunings/{tuning_id}"
    tuning = client.get(base).json()
    assert tuning["state"] == "finished"
    assert tuning["result"]["speedup"] > 1
    ranked = client.get(f"{base}/strategies").json()
    assert (ranked["byte_scale"], ranked["time_scale"]) == (0.5, 2.0)
    assert ranked["items"][0]["words"] == tuning["result"]["words"]
    assert len(client.get(f"{base}/trials").json()["items"]) == 6 + 4 + 2 * 2
    shipped = client.get(f"{base}/bundle")
    assert "best.json" in shipped.headers["content-disposition"]
    assert from_json(Bundle, shipped.content).strategy.id == tuning["result"]["strategy_id"]
    strategy_id = ranked["items"][3]["strategy_id"]
    of_another = client.get(f"{base}/bundle?strategy={strategy_id}")
    assert of_another.headers["content-disposition"] == "attachment", "it is not best.json"
    other = from_json(Bundle, of_another.content)
    assert other.strategy.id == strategy_id
    assert client.get(f"/v1/strategies/{strategy_id}").text == to_json(other.strategy)
    assert "testbed (4 nodes)" in client.get("/v1/runtimes.csv").text
    assert client.get("/v1/runtimes.parquet").content[:4] == b"PAR1"
    refused(client.post(f"{base}/cancel"), 409, "finished already")


def test_events_tell_the_whole_story_and_go_on_where_they_stopped(
    client: TestClient, sqlite: Database
) -> None:
    tuning_id = finished(sqlite, REQUEST)
    story = client.get(f"/v1/tunings/{tuning_id}/events")
    assert story.headers["content-type"].startswith("text/event-stream")
    assert story.headers["x-accel-buffering"] == "no", "asks proxies not to hold it back"
    events = story.text.strip().split("\n\n")
    assert events[-1] == 'event: end\ndata: {"state": "finished"}'
    kinds = [json.loads(event.split("data: ")[1])["kind"] for event in events[:-1]]
    assert kinds == ["ranking"] + ["search"] * 6 + ["confirm"] * 8
    last = events[4].split("\n")[0].removeprefix("id: ")
    rest = client.get(f"/v1/tunings/{tuning_id}/events", headers={"Last-Event-ID": last})
    assert rest.text.strip().split("\n\n") == events[5:]


def test_events_are_listed_in_pages_at_once(client: TestClient, sqlite: Database) -> None:
    held, store = claimed(sqlite, REQUEST)
    for number in range(5):
        store.report(waiting(f"event {number}"))
    path = f"/v1/tunings/{held.job_id}/events"
    streamed = {"id", "kind", "message", "done", "total", "best_seconds", "at"}
    first = client.get(path, params={"after": 0, "limit": 3}).json()
    assert first["tuning_id"] == held.job_id
    assert first["state"] == "running"
    assert set(first["items"][0]) == streamed
    assert first["more"]
    rest = client.get(path, params={"after": first["items"][-1]["id"], "limit": 3}).json()
    assert [each["message"] for each in first["items"] + rest["items"]] == [
        f"event {number}" for number in range(5)
    ]
    assert not rest["more"]
    last = rest["items"][-1]["id"]
    assert client.get(path, params={"after": last}).json()["items"] == []
    refused(client.get(path, params={"after": -1}), 422, "greater than or equal")
    refused(client.get("/v1/tunings/none/events?after=0"), 404, "no tuning")


def test_an_event_of_any_kind_is_told_and_hides_no_progress(
    client: TestClient, sqlite: Database
) -> None:
    held, store = claimed(sqlite, REQUEST)
    run_search(store, REQUEST)
    before = client.get(f"/v1/tunings/{held.job_id}").json()["progress"]
    store.report(waiting("another measurement runs on this machine"))
    progress = client.get(f"/v1/tunings/{held.job_id}").json()["progress"]
    assert progress == {**before, "message": "another measurement runs on this machine"}
    job_queue.end_cancelled(sqlite, held)
    told = client.get(f"/v1/tunings/{held.job_id}/events").text.strip().split("\n\n")
    event = json.loads(told[-2].split("data: ")[1])
    assert event["kind"] == "waiting"
    assert event["message"] == "another measurement runs on this machine"


def test_the_schema_of_every_document(client: TestClient) -> None:
    names = client.get("/v1/schemas").json()
    assert {"Strategy", "Cluster", "ModelGraph", "Bundle", "Plan", "Domain"} <= set(names)
    for name, path in names.items():
        schema = client.get(path).json()
        assert schema["title"] == name == DOCUMENTS[name].__name__
    refused(client.get("/v1/schemas/Nothing"), 404, "Nothing", "ModelGraph")


def test_the_database_is_away(client: TestClient, sqlite: Database) -> None:
    with sqlite.writing() as session:
        session.execute(text("drop table events"))
        session.execute(text("alter table jobs rename to elsewhere"))
    answer = client.get("/v1/tunings")
    refused(answer, 503, "database")
    assert "elsewhere" not in answer.text


def test_state_of_a_running_one_over_the_api(client: TestClient, sqlite: Database) -> None:
    held, store = claimed(sqlite, REQUEST)
    run_search(store, REQUEST)
    tuning = client.get(f"/v1/tunings/{held.job_id}").json()
    assert tuning["state"] == "running"
    assert tuning["best_seconds"] > 0
    early = refused(client.get(f"/v1/tunings/{held.job_id}/bundle"), 409, "running", "?strategy=")
    assert early["thing"] == "bundle"
    assert client.post(f"/v1/tunings/{held.job_id}/cancel").json()["state"] == "cancelling"
    job_queue.end_cancelled(sqlite, held)


def test_what_is_known_is_not_sent_again(client: TestClient, sqlite: Database) -> None:
    base = f"/v1/tunings/{finished(sqlite, REQUEST)}"
    tuning = client.get(base).json()
    for path in (
        base,
        f"{base}/strategies",
        f"{base}/strategies?limit=2",
        f"{base}/trials",
        f"{base}/bundle",
        f"{base}/timeline",
        f"{base}/trace",
        f"/v1/graphs/{tuning['graph_id']}",
        f"/v1/clusters/{tuning['cluster_id']}",
        f"/v1/strategies/{tuning['result']['strategy_id']}",
    ):
        first = client.get(path)
        assert first.status_code == 200
        tag = first.headers["etag"]
        for known in (tag, f'W/{tag}, "other"', "*"):
            again = client.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b""), path
            assert again.headers["etag"] == tag
        other = client.get(path, headers={"If-None-Match": '"other"'})
        assert other.content == first.content
    pages = [client.get(f"{base}/trials?limit={n}").headers["etag"] for n in (2, 3)]
    assert pages[0] != pages[1]


def test_what_changes_has_another_tag(client: TestClient, sqlite: Database) -> None:
    held, store = claimed(sqlite, REQUEST)
    paths = (f"/v1/tunings/{held.job_id}", f"/v1/tunings/{held.job_id}/trials")
    known = {path: {"If-None-Match": client.get(path).headers["etag"]} for path in paths}
    for path in paths:
        assert client.get(path, headers=known[path]).status_code == 304
    run_search(store, REQUEST)
    for path in paths:
        assert client.get(path, headers=known[path]).status_code == 200, path
    missing = client.get(f"/v1/tunings/{'0' * 32}/trials", headers={"If-None-Match": "*"})
    assert missing.status_code == 404


POSTS = 100


def test_a_hundred_at_once_are_one_tuning(database: Database) -> None:
    """Also where the client's queue has room for no other."""
    app = create_app(database, limits=ServiceLimits(queued=1))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        body = {**posted(client), "budget": 3}

        def post(number: int) -> Any:
            return client.post("/v1/tunings", json=body, headers={"Idempotency-Key": "mine"})

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(post, range(POSTS)))
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert client.get("/v1/tunings").json()["total"] == 1
        full = client.post("/v1/tunings", json=body, headers={"Idempotency-Key": "another"})
        assert full.status_code == 429
        assert int(full.headers["retry-after"]) > 0


def test_a_key_means_one_body_of_one_client(sqlite: Database) -> None:
    app = create_app(sqlite, Access("alice:open,bob:sesame"))
    alice, bob = ({"authorization": f"Bearer {token}"} for token in ("open", "sesame"))
    with TestClient(app, base_url="http://127.0.0.1", headers=alice) as client:
        body = {**posted(client), "budget": 3}
        key = {"Idempotency-Key": "mine"}
        first = client.post("/v1/tunings", json=body, headers=key)
        turned = dict(reversed(body.items()))
        assert (
            client.post("/v1/tunings", json=turned, headers=key).json()["id"] == first.json()["id"]
        )
        other = client.post("/v1/tunings", json={**body, "budget": 4}, headers=key)
        assert other.status_code == 409
        assert other.json()["thing"] == "Idempotency-Key"
        of_bob = client.post("/v1/tunings", json=body, headers={**key, **bob})
        assert of_bob.status_code == 202
        assert of_bob.json()["id"] != first.json()["id"]
        without = client.post("/v1/tunings", json=body)
        assert without.json()["id"] not in (first.json()["id"], of_bob.json()["id"])
        assert client.get("/v1/tunings").json()["total"] == 3
        for wrong in ("", "a b", "x" * 201):
            refused = client.post("/v1/tunings", json=body, headers={"Idempotency-Key": wrong})
            assert refused.status_code == 422


def test_a_tuning_of_several_batches_an_update(
    client: TestClient, sqlite: Database, ids: dict[str, str]
) -> None:
    """Asked for, stored, told, and another domain than with one batch."""
    with_three, with_one = (
        client.post("/v1/tunings", json={**ids, "byte_scale": 0.25, "accumulate": batches}).json()
        for batches in (3, 1)
    )
    assert (with_three["accumulate"], with_one["accumulate"]) == (3, 1)
    assert with_three["domain_id"] != with_one["domain_id"]
    base = f"/v1/tunings/{with_three['id']}"
    domain = from_json(Domain, client.get(f"{base}/domain").content)
    assert (domain.accumulate, domain.id) == (3, with_three["domain_id"])
    measured = from_json(EarlierTrials, client.get(f"{base}/measured").content)
    assert measured.accumulate == 3
    with sqlite.reading() as session:
        assert form_of_tuning(session, with_three["id"]).fields["accumulate"] == "3"
        assert load_request(session, with_three["id"]).domain == domain
    refused(client.post("/v1/tunings", json={**ids, "accumulate": 0}), 422, "accumulate")
