"""A request that is sent again, or a hundred times at once, starts one tuning."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi.testclient import TestClient

from autosync.api.db import Database
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.access.access_rules import Access
from autosync.api.http.app import create_app
from autosync.documents import to_json
from tests.domains import chain_graph, grid_cluster

POSTS = 100


def asked(client: TestClient) -> dict[str, Any]:
    graph = client.post("/v1/graphs", content=to_json(chain_graph())).json()["id"]
    cluster = client.post("/v1/clusters", content=to_json(grid_cluster())).json()["id"]
    return {"graph": graph, "cluster": cluster, "budget": 3}


def test_a_hundred_at_once_are_one_tuning(database: Database) -> None:
    """Also where the client's queue has room for no other."""
    app = create_app(database, limits=ServiceLimits(queued=1))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        body = asked(client)

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
        body = asked(client)
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
