"""Rankings and comparisons by prediction alone, over REST."""

import pytest
from fastapi.testclient import TestClient

from autosync.api.engine.service_limits import UNLIMITED, ServiceLimits
from autosync.api.http import prediction_answers
from autosync.api.http.prediction_answers import TimeLimit
from autosync.documents import from_data
from autosync.errors import InvalidInput
from autosync.strategy import Strategy
from tests.api.http.rest_answers import posted
from tests.placed_models import heavy_layers


@pytest.fixture
def limits() -> ServiceLimits:
    """Without any, predictions are answered in this process."""
    return UNLIMITED


def test_the_best_by_prediction(client: TestClient, ids: dict[str, str]) -> None:
    answer = client.post("/v1/rank", json={**ids, "proposals": 64, "top": 5})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    seconds = [row["predicted_seconds"] for row in found["items"]]
    assert len(seconds) == 5
    assert seconds == sorted(seconds)
    assert [row["rank"] for row in found["items"]] == [1, 2, 3, 4, 5]
    for row in found["items"]:
        assert row["predicted_speedup"] == pytest.approx(
            found["ddp_seconds"] / row["predicted_seconds"]
        )
        assert from_data(Strategy, row["strategy"]).id == row["strategy_id"]
    assert 0 < found["limit_seconds"] <= seconds[0]
    assert client.get("/v1/tunings").json()["total"] == 0
    assert client.post("/v1/rank", json={**ids, "proposals": 64, "top": 5}).json() == found


def test_what_ranks_unless_told_otherwise_has_learned(
    client: TestClient, ids: dict[str, str]
) -> None:
    small = {**ids, "proposals": 16, "top": 1}
    usual = client.post("/v1/rank", json=small).json()
    assert usual["simulator"] == "learned"
    alone = client.post("/v1/rank", json={**small, "simulator": "timeline"}).json()
    assert alone["simulator"] == "timeline"
    assert alone["ddp_seconds"] != usual["ddp_seconds"]


def test_clusters_by_what_they_cost(client: TestClient, ids: dict[str, str]) -> None:
    clusters = [
        {"cluster": ids["cluster"], "cost_per_hour": 1e6},
        {"cluster": "example-2x2", "cost_per_hour": 1},
    ]
    body = {"graph": ids["graph"], "clusters": clusters, "proposals": 16}
    items = client.post("/v1/compare", json=body).json()["items"]
    assert [item["cluster"] for item in items] == ["example-2x2", "grid"]
    assert [item["requested"] for item in items] == ["example-2x2", ids["cluster"]]
    for item, cost in zip(items, (1, 1e6), strict=True):
        hours = 1e6 / item["samples_per_second"] / 3600
        assert item["cost_per_million_samples"] == pytest.approx(hours * cost)
    del clusters[0]["cost_per_hour"]
    items = client.post("/v1/compare", json=body).json()["items"]
    rates = [item["samples_per_second"] for item in items]
    assert rates == sorted(rates, reverse=True)


def test_a_cluster_that_cannot_hold_the_model_is_left_out_of_a_comparison(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = heavy_layers(memory_gb=0.001)
    tight = posted(client, where.graph, where.cluster)
    clusters = [{"cluster": tight["cluster"]}, {"cluster": "example-2x2"}]
    body = {"graph": tight["graph"], "clusters": clusters, "proposals": 16}
    found = client.post("/v1/compare", json=body).json()
    assert [each["requested"] for each in found["items"]] == ["example-2x2"]
    (left_out,) = found["left_out"]
    assert left_out["requested"] == tight["cluster"]
    assert "fits the devices of cluster 'grid'" in left_out["reason"]
    alone = client.post("/v1/compare", json={**body, "clusters": clusters[:1]})
    assert (alone.status_code, alone.json()["thing"]) == (422, "memory")
    things = iter(("profile", "memory"))

    def refuse(*_: object) -> None:
        raise InvalidInput("it is wrong.", thing=next(things), value=None, remedy="Mend it.")

    monkeypatch.setattr(prediction_answers, "_compared", refuse)
    assert client.post("/v1/compare", json=body).json()["thing"] == "profile"


def test_what_cannot_be_predicted_is_refused(
    client: TestClient, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for change, status in (
        ({"cluster": "nowhere"}, 404),
        ({"simulator": "nobody"}, 404),
        ({"proposals": 10**7}, 422),
        ({"optimizer": {"name": "nobody"}}, 422),
        ({"budget": 3}, 422),
    ):
        answer = client.post("/v1/rank", json={**ids, **change})
        assert answer.status_code == status, answer.text
        assert answer.json()["remedy"]
    misspelt = {"model": ids["graph"], "cluster": ids["cluster"]}
    detail = client.post("/v1/rank", json=misspelt).json()["detail"]
    assert "graph: Field required" in detail
    assert detail.endswith("(and 1 more problem: model)")
    monkeypatch.setattr(TimeLimit, "is_over", lambda limit: True)
    answer = client.post("/v1/rank", json={**ids, "proposals": 64})
    assert (answer.status_code, answer.json()["thing"]) == (409, "proposals")


def slow_links(client: TestClient, memory_gb: float | None = None) -> dict[str, object]:
    """A request in which placements pay."""
    where = heavy_layers(gbps=0.05, memory_gb=memory_gb)
    optimizer = {"name": "adamw", "elementwise": True, "state_tensors": 2}
    asked = {"proposals": 64, "space": {"placement": True}, "optimizer": optimizer}
    return {**posted(client, where.graph, where.cluster), **asked}


def test_placements_that_a_request_has_no_time_for_are_left_out_and_it_says_so(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = slow_links(client)
    whole = client.post("/v1/rank", json=body).json()
    assert whole["placements_cut"] is False
    assert whole["items"][0]["strategy"].get("placement")
    monkeypatch.setattr(TimeLimit, "stop_placing", no_time)
    cut = client.post("/v1/rank", json=body).json()
    assert cut["placements_cut"] is True
    assert not any(each["strategy"].get("placement") for each in cut["items"])
    whole_state = {"parameter_server": False, "reduce_scatter": False, "sharded_parameters": False}
    tight = slow_links(client, memory_gb=0.015) | {"space": {"placement": True, **whole_state}}
    refused = client.post("/v1/rank", json=tight)
    assert (refused.status_code, refused.json()["thing"]) == (409, "space.placement")
    monkeypatch.undo()
    found = client.post("/v1/rank", json=tight).json()
    assert found["items"][0]["strategy"]["placement"]


def no_time(limit: TimeLimit) -> bool:
    limit.placements_cut = True
    return True


def test_time_ends_for_placements_and_draws_alike() -> None:
    seconds = [0.0]
    limit = TimeLimit(60.0, lambda: seconds[0])
    assert not limit.is_over()
    assert not limit.stop_placing()
    seconds[0] = 61.0
    assert limit.is_over()
    assert not limit.placements_cut
    assert limit.stop_placing()
    assert limit.placements_cut


def test_placements_that_a_cluster_cannot_have_are_told(
    client: TestClient, ids: dict[str, str]
) -> None:
    asked = {**ids, "proposals": 16, "top": 1}
    for cluster, space, told in (
        ("aws-p3-2xlarge-x4", {"placement": True}, True),
        ("aws-p3-2xlarge-x4", {}, False),
        (ids["cluster"], {"placement": True}, False),
        (ids["cluster"], {"placement": True, "all_reduce": False}, True),
    ):
        answer = client.post("/v1/rank", json={**asked, "cluster": cluster, "space": space})
        assert answer.status_code == 200, answer.text
        warned = [each for each in answer.json()["warnings"] if "no modules are placed" in each]
        assert bool(warned) == told, (cluster, space)
