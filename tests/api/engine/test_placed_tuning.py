"""A tuning of the service whose space places modules: measured by replay, and told in words."""

import threading

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from autosync.api.db import Database
from autosync.api.db.tables import ProposalRow, TrialRow
from autosync.api.engine.queue_worker import work
from autosync.api.engine.submission import enqueue, load_request
from autosync.api.engine.tuning_request import TuningRequest
from autosync.api.http.app import create_app
from autosync.search.loop.settings import Settings
from autosync.search.space import Space
from tests.api.http.rest_answers import posted
from tests.placed_models import heavy_layers

SETTINGS = Settings(budget=8, proposals=100, repeats=1, warmup=1, iterations=2, probe=False)


@pytest.mark.long
def test_placements_are_measured_and_told_in_words(sqlite: Database) -> None:
    request = TuningRequest(
        heavy_layers(gbps=0.05), SETTINGS, Space(placement=True), launcher="local"
    )
    tuning_id = enqueue(sqlite, request)
    with sqlite.reading() as session:
        assert load_request(session, tuning_id).space.placement
    work(str(sqlite.engine.url), threading.Event(), once=True, trains=False)
    query = (
        select(ProposalRow.origin, ProposalRow.strategy_id, TrialRow.step_seconds)
        .join(
            TrialRow,
            (TrialRow.tuning_id == ProposalRow.tuning_id) & (TrialRow.key == ProposalRow.key),
        )
        .where(ProposalRow.tuning_id == tuning_id)
    )
    with sqlite.reading() as session:
        rows = session.execute(query).all()
    placed = [row for row in rows if row.origin.startswith("placed")]
    assert placed
    assert all(row.step_seconds is not None for row in rows)
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        answer = client.get(f"/tunings/{tuning_id}/why", params={"strategy": placed[0].strategy_id})
        assert answer.status_code == 200
        assert "of gradients no longer travel" in answer.text
        assert "Placement" in answer.text


def test_kernels_and_placements_do_not_go_together(client: TestClient) -> None:
    where = heavy_layers()
    ids = posted(client, where.graph, where.cluster)
    body = {**ids, "launcher": "local", "compute": "kernels"}
    refused = client.post("/v1/tunings", json={**body, "space": {"placement": True}})
    assert refused.status_code == 422
    assert refused.json()["thing"] == "space.placement"
    assert client.get("/v1/tunings").json()["items"] == []
