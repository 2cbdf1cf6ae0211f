"""Every kind of bad input: named, with the way out, nothing half-written; so one service does."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from autosync.api.db import Database
from autosync.api.db.tables import Base
from autosync.api.http.app import create_app
from autosync.documents import to_data, to_json
from tests.api.databases import opened
from tests.api.http.forms import given_token
from tests.api.http.rest_answers import YAML, posted, refused
from tests.domains import chain_graph, domain_of

GRAPH = chain_graph()
MANY_DIGITS = 10**4200
"""More than a float or a column holds, and nearly as many as Python reads."""


@pytest.fixture(scope="module")
def database(module_url: str) -> Iterator[Database]:
    with opened(module_url) as database:
        yield database


@pytest.fixture(scope="module")
def client(database: Database) -> Iterator[TestClient]:
    with TestClient(create_app(database), base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture(scope="module")
def ids(client: TestClient) -> dict[str, str]:
    """A graph and a cluster that were posted."""
    return posted(client)


@pytest.fixture(autouse=True)
def nothing_written(database: Database, ids: dict[str, str]) -> Iterator[None]:
    before = counts(database)
    yield
    assert counts(database) == before


def counts(database: Database) -> dict[str, int]:
    with database.reading() as session:
        return {
            name: session.scalar(select(func.count()).select_from(table)) or 0
            for name, table in Base.metadata.tables.items()
        }


@pytest.mark.parametrize("path", ["/v1/graphs", "/v1/clusters"])
@pytest.mark.parametrize(
    "body",
    [b"garbage", b"", b"\xff\xfe\x00", b"[]", b'{"name": 1}', b"[" * 20_000, b'{"name": NaN}'],
    ids=["garbage", "empty", "binary", "list", "wrong", "deep", "nan"],
)
def test_garbage_where_a_document_is_due(client: TestClient, path: str, body: bytes) -> None:
    refused(client.post(path, content=body), 422)


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
def test_a_cluster_that_cannot_be(client: TestClient, yaml: str, part: str) -> None:
    answer = client.post("/v1/clusters", content=yaml)
    assert answer.status_code == 422
    assert part in answer.text


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
        ({"graph": "vgg16", "space": {"slice_bytes": [1]}}, "schedule.slice_bytes", "1 bytes"),
        ({"space": {"encodings": [{"name": "powersgd", "rank": 240}]}}, "encoding.rank", "239"),
    ],
)
def test_a_tuning_that_makes_no_sense(
    client: TestClient,
    ids: dict[str, str],
    change: dict[str, Any],
    thing: str,
    part: str,
) -> None:
    body = json.dumps({**ids, **change})
    answer = client.post("/v1/tunings", content=body, headers={"content-type": "application/json"})
    problem = refused(answer, 422, part)
    assert problem["thing"].startswith(thing)


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


def test_a_pin_to_an_owner_below_0_is_refused(client: TestClient, ids: dict[str, str]) -> None:
    space = pin("v0", [64])
    space["pins"][0]["shards"] = [{"kind": "parameter_server", "server": -1, "group": 0}]
    refused(client.post("/v1/tunings", json={**ids, "space": space}), 422, "owner -1")


def test_a_pin_that_no_strategy_can_have_is_refused(
    client: TestClient, ids: dict[str, str]
) -> None:
    space = pin("v0", [64])
    space["pins"][0]["shards"] = [{"kind": "all_gather", "group": 0}]
    refused(client.post("/v1/tunings", json={**ids, "space": space}), 422, "v0", "dense gradient")


def test_what_belongs_to_another_graph_is_refused(client: TestClient, ids: dict[str, str]) -> None:
    other = to_data(domain_of(graph=chain_graph(((4, 4), (4,)))).profile)
    answers = [
        client.post("/v1/tunings", json={**ids, "profile": other}),
        client.post("/v1/tunings", json={**ids, "space": pin("encoder.weight", [64])}),
        client.post("/v1/tunings", json={**ids, "space": pin("v0", [60, 5])}),
    ]
    refused(answers[0], 422, "belongs to another graph")
    refused(answers[1], 422, "encoder.weight", "chain")
    refused(answers[2], 422, "(64, 32)")


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/graphs/{}", "/v1/clusters/{}", "/v1/strategies/{}", "/v1/tunings/{}"),
        *("/v1/tunings/{}/strategies", "/v1/tunings/{}/trials", "/v1/tunings/{}/events"),
        "/v1/tunings/{}/bundle",
    ],
)
@pytest.mark.parametrize("key", ["0" * 32, "nonsense", "a'b"])
def test_unknown_ids(client: TestClient, path: str, key: str) -> None:
    refused(client.get(path.format(key)), 404, "there is no")


@pytest.mark.parametrize(
    "address",
    [
        "/?tag=%00",
        "/?text=a%00b",
        "/v1/tunings?tag=%00",
        "/v1/runtimes.csv?graph=%00",
        "/v1/keys%00",
    ],
)
def test_nul_in_an_address_is_refused(client: TestClient, address: str) -> None:
    refused(client.get(address), 422, "NUL")


def test_nul_in_a_body_is_refused(client: TestClient, ids: dict[str, str]) -> None:
    asked = {**ids, "simulator": "a\0b"}
    refused(client.post("/v1/tunings", json=asked), 422, "NUL")
    refused(client.post("/v1/rank", json=asked), 422, "NUL")
    refused(client.patch(f"/v1/tunings/{'0' * 32}", json={"note": "a\0b"}), 422, "NUL")
    refused(client.post("/v1/keys", content=b'{"name": "a\0b", "scope": "read"}'), 422, "NUL")
    note = {"note": "a\0b", **given_token(client)}
    refused(client.post(f"/tunings/{'0' * 32}/notes", data=note), 422, "NUL")
    # a backslash before u0000, in no escape
    escaped = client.post("/v1/tunings", json={**ids, "graph": "a\\u0000"})
    refused(escaped, 404, "no graph")


@pytest.mark.parametrize("cut", range(1, 7))
def test_nul_that_arrives_in_two_parts_is_refused(client: TestClient, cut: int) -> None:
    text = b'{"graph": "a\\u0000"}'
    place = text.index(b"u0000") - 1 + cut
    parts = iter((text[:place], text[place:]))
    refused(client.post("/v1/tunings", content=parts), 422, "NUL")


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
