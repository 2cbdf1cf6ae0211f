"""Every route, and every kind of bad input: named, with the way out, nothing half-written."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, text

from autosync.api.db import Database
from autosync.api.db.tables import Base
from autosync.api.engine import tuning_queue
from autosync.api.http.app import create_app
from autosync.api.http.openapi import DOCUMENTS
from autosync.bundle import Bundle
from autosync.documents import from_json, to_data, to_json
from tests.api.sample import claimed, finished, run_search, small_request, waiting
from tests.domains import chain_graph, domain_of, grid_cluster

REQUEST = small_request()
GRAPH, CLUSTER = chain_graph(), grid_cluster()
MANY_DIGITS = 10**4200
"""More than a float or a column holds, and nearly as many as Python reads."""
YAML = """
name: two
nodes:
  - {address: 10.0.0.1, devices: [{type: v100}], bandwidth_gbps: 9.5}
  - {address: 10.0.0.2, devices: [{type: v100}], bandwidth_gbps: 9.5}
"""


@pytest.fixture
def client(sqlite: Database) -> Iterator[TestClient]:
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture
def ids(client: TestClient) -> dict[str, str]:
    """A graph and a cluster that were posted."""
    graph = client.post("/v1/graphs", content=to_json(GRAPH)).json()["id"]
    cluster = client.post("/v1/clusters", content=to_json(CLUSTER)).json()["id"]
    return {"graph": graph, "cluster": cluster}


def counts(database: Database) -> dict[str, int]:
    with database.reading() as session:
        return {
            name: session.scalar(select(func.count()).select_from(table)) or 0
            for name, table in Base.metadata.tables.items()
        }


def refused(answer: Any, status: int, *parts: str) -> dict[str, Any]:
    """A problem that names the thing, the value and the way out."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == status
    for part in parts:
        assert part in json.dumps(problem, ensure_ascii=False), problem
    assert problem["thing"], problem
    assert problem["remedy"], problem
    return problem


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
    assert len(client.get(f"{base}/trials").json()["items"]) == 6 + 4 * 3
    shipped = client.get(f"{base}/bundle")
    assert "best.json" in shipped.headers["content-disposition"]
    assert from_json(Bundle, shipped.content).strategy.id == tuning["result"]["strategy_id"]
    strategy_id = ranked["items"][3]["strategy_id"]
    other = from_json(Bundle, client.get(f"{base}/bundle?strategy={strategy_id}").content)
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
    events = story.text.strip().split("\n\n")
    assert events[-1] == 'event: end\ndata: {"state": "finished"}'
    kinds = [json.loads(event.split("data: ")[1])["kind"] for event in events[:-1]]
    assert kinds == ["ranking"] + ["search"] * 6 + ["confirm"] * 12
    last = events[4].split("\n")[0].removeprefix("id: ")
    rest = client.get(f"/v1/tunings/{tuning_id}/events", headers={"Last-Event-ID": last})
    assert rest.text.strip().split("\n\n") == events[5:]


def test_an_event_of_any_kind_is_told_and_hides_no_progress(
    client: TestClient, sqlite: Database
) -> None:
    held, store = claimed(sqlite, REQUEST)
    run_search(store, REQUEST)
    before = client.get(f"/v1/tunings/{held.tuning_id}").json()["progress"]
    store.report(waiting("another measurement runs on this machine"))
    progress = client.get(f"/v1/tunings/{held.tuning_id}").json()["progress"]
    assert progress == {**before, "message": "another measurement runs on this machine"}
    tuning_queue.end_cancelled(sqlite, held)
    told = client.get(f"/v1/tunings/{held.tuning_id}/events").text.strip().split("\n\n")
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


@pytest.mark.parametrize("path", ["/v1/graphs", "/v1/clusters"])
@pytest.mark.parametrize(
    "body",
    [b"garbage", b"", b"\xff\xfe\x00", b"[]", b'{"name": 1}', b"[" * 20_000, b'{"name": NaN}'],
    ids=["garbage", "empty", "binary", "list", "wrong", "deep", "nan"],
)
def test_garbage_where_a_document_is_due(
    client: TestClient, sqlite: Database, path: str, body: bytes
) -> None:
    refused(client.post(path, content=body), 422)
    assert not any(counts(sqlite).values())


@pytest.mark.parametrize(
    ("yaml", "part"),
    [
        (YAML.replace(", bandwidth_gbps: 9.5}\n  -", "}\n  -"), "10.0.0.1"),
        (YAML.replace("v100", "abacus"), "abacus"),
        (YAML.replace("10.0.0.2", "10.0.0.1"), "used by two nodes"),
        (YAML.replace("name: two", 'name: "a\\0b"'), "printable"),
        (YAML + "\nextra: !!python/object/apply:os.system ['true']", "valid YAML"),
    ],
    ids=["no bandwidth", "unknown device", "duplicate address", "nul in name", "python tag"],
)
def test_a_cluster_that_cannot_be(
    client: TestClient, sqlite: Database, yaml: str, part: str
) -> None:
    answer = client.post("/v1/clusters", content=yaml)
    assert answer.status_code == 422
    assert part in answer.text
    assert not any(counts(sqlite).values())


def test_a_graph_too_large_to_be_true(client: TestClient) -> None:
    data = to_data(GRAPH)
    data["variables"][0]["shape"] = [10**12, 10**12]
    refused(client.post("/v1/graphs", json=data), 422, "which no model has")
    data = to_data(GRAPH)
    data["operations"][0]["forward_flops"] = 10**300
    refused(client.post("/v1/graphs", json=data), 422, "operations.0.forward_flops")


@pytest.mark.parametrize(
    ("change", "thing", "part"),
    [
        ({"budget": -3}, "budget", "-3"),
        ({"budget": "many"}, "budget", "many"),
        ({"budget": 10**30}, "budget", "1000000000"),
        ({"budget": 1001}, "budget", "--limit budget=NUMBER"),
        ({"proposals": 10**7}, "proposals", "--limit proposals=NUMBER"),
        ({"byte_scale": 0}, "byte_scale", "equal to 0.000001"),
        ({"byte_scale": 1e-300}, "byte_scale", "1e-300"),
        ({"time_scale": 1e-300}, "time_scale", "1e-300"),
        ({"byte_scale": float("nan")}, "byte_scale", "nan"),
        ({"launcher": "moon"}, "launcher", "testbed"),
        ({"batch_size": 3}, "batch_size", "batch size 8"),
        ({"bugdet": 3}, "bugdet", "Extra inputs"),
        ({"optimizer": {"name": "sgd", "momentum": 1}}, "optimizer", "Unexpected keyword"),
        ({"optimizer": {"name": "nobody"}}, "optimizer.name", "adamw"),
        ({"optimizer": {"state_tensors": -3}}, "optimizer.state_tensors", "-3"),
        ({"optimizer": {"state_tensors": MANY_DIGITS}}, "optimizer.state_tensors", "2^"),
        ({"space": {"max_groups": MANY_DIGITS}}, "space.max_groups", "2^"),
        ({"space": {"max_parts": "x"}}, "space.max_parts", "'x'"),
        ({"space": {"max_groups": -1}}, "space.max_groups", "Give 1 or more"),
        ({"space": {"encodings": []}}, "encodings", "is empty"),
        ({"space": {"encodings": [{"name": "powersgd", "rank": 240}]}}, "encoding.rank", "239"),
    ],
)
def test_a_tuning_that_makes_no_sense(
    client: TestClient,
    sqlite: Database,
    ids: dict[str, str],
    change: dict[str, Any],
    thing: str,
    part: str,
) -> None:
    before = counts(sqlite)
    body = json.dumps({**ids, **change})
    answer = client.post("/v1/tunings", content=body, headers={"content-type": "application/json"})
    problem = refused(answer, 422, part)
    assert problem["thing"].startswith(thing)
    assert counts(sqlite) == before


def pin(variable: str, lengths: list[int]) -> dict[str, Any]:
    return {
        "pins": [
            {
                "variable": variable,
                "partition": {"axis": 0, "lengths": lengths},
                "shards": [{"kind": "all_reduce", "group": 0}] * len(lengths),
            }
        ]
    }


def test_a_count_of_50000_digits_is_refused(client: TestClient, ids: dict[str, str]) -> None:
    """Python reads no number of more than 4,300 digits, and prints none."""
    digits = "9" * 50_000
    sent = {"content-length": digits}
    refused(client.post("/v1/graphs", content=b"{}", headers=sent), 413, "32 MiB")
    refused(client.get(f"/v1/tunings?limit={digits}"), 422)
    body = f'{{"graph": "{ids["graph"]}", "cluster": "{ids["cluster"]}", "budget": {digits}}}'
    refused(client.post("/v1/tunings", content=body), 422)
    for count in (digits, str(MANY_DIGITS)):
        nodes = f"[{{address: 10.0.0.1, devices: [{{type: v100, count: {count}}}]"
        answer = client.post(
            "/v1/clusters", content=f"name: two\nnodes: {nodes}, bandwidth_gbps: 9}}]"
        )
        refused(answer, 422)
        graph = to_json(GRAPH).replace('"batch_size":8', f'"batch_size":{count}')
        refused(client.post("/v1/graphs", content=graph), 422)


def test_pins_to_groups_that_cannot_be_are_refused(client: TestClient, ids: dict[str, str]) -> None:
    for group in (-1, 10**30):
        space = pin("v0", [64])
        space["pins"][0]["shards"][0]["group"] = group
        refused(client.post("/v1/tunings", json={**ids, "space": space}), 422, "space.pins")


def test_what_belongs_to_another_graph_is_refused(
    client: TestClient, sqlite: Database, ids: dict[str, str]
) -> None:
    before = counts(sqlite)
    other = to_data(domain_of(graph=chain_graph(((4, 4), (4,)))).profile)
    answers = [
        client.post("/v1/tunings", json={**ids, "profile": other}),
        client.post("/v1/tunings", json={**ids, "space": pin("encoder.weight", [64])}),
        client.post("/v1/tunings", json={**ids, "space": pin("v0", [60, 5])}),
    ]
    refused(answers[0], 422, "belongs to another graph")
    refused(answers[1], 422, "encoder.weight", "chain")
    refused(answers[2], 422, "(64, 32)")
    assert counts(sqlite) == before


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/graphs/{}", "/v1/clusters/{}", "/v1/strategies/{}", "/v1/tunings/{}"),
        *("/v1/tunings/{}/strategies", "/v1/tunings/{}/trials", "/v1/tunings/{}/events"),
        "/v1/tunings/{}/bundle",
    ],
)
@pytest.mark.parametrize("key", ["0" * 32, "nonsense", "%00", "a'b"])
def test_unknown_ids(client: TestClient, path: str, key: str) -> None:
    refused(client.get(path.format(key)), 404, "there is no")


def test_unknown_names_in_a_request(client: TestClient, ids: dict[str, str]) -> None:
    answer = client.post("/v1/tunings", json={**ids, "graph": "resnet51"})
    refused(answer, 404, "resnet51", "resnet50", "/v1/graphs")
    answer = client.post("/v1/tunings", json={**ids, "cluster": "../../etc/passwd"})
    refused(answer, 404, "passwd", "example-4x1")
    refused(client.post(f"/v1/tunings/{'0' * 32}/cancel"), 404, "there is no tuning")
    refused(client.get("/v1/nothing"), 404, "/docs")
    refused(client.delete("/v1/graphs"), 405)


def test_a_broken_tuning_body_is_no_json(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    for body in (b"{garbage", b"[" * 100_000, b"\xff"):
        refused(client.post("/v1/tunings", content=body, headers=headers), 422)


def test_the_database_is_away(client: TestClient, sqlite: Database) -> None:
    with sqlite.writing() as session:
        session.execute(text("drop table events"))
        session.execute(text("alter table tunings rename to elsewhere"))
    answer = client.get("/v1/tunings")
    refused(answer, 503, "database")
    assert "elsewhere" not in answer.text


def test_state_of_a_running_one_over_the_api(client: TestClient, sqlite: Database) -> None:
    held, store = claimed(sqlite, REQUEST)
    run_search(store, REQUEST)
    tuning = client.get(f"/v1/tunings/{held.tuning_id}").json()
    assert tuning["state"] == "running"
    assert tuning["best_seconds"] > 0
    refused(client.get(f"/v1/tunings/{held.tuning_id}/bundle"), 409, "running", "?strategy=")
    assert client.post(f"/v1/tunings/{held.tuning_id}/cancel").json()["state"] == "cancelling"
    tuning_queue.end_cancelled(sqlite, held)
