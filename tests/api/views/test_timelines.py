"""What a tuning recorded of its finalists, beside the prediction, through the service."""

import json
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from autosync.api.db import Database
from autosync.api.http.app import create_app
from autosync.api.views import reports
from autosync.api.views.timeline_schemas import Timeline
from tests.api.sample import Shown, claimed, run_search, small_request

REQUEST = small_request(budget=8)


def client(database: Database) -> TestClient:
    return TestClient(create_app(database), base_url="http://127.0.0.1")


def timeline(service: TestClient, tuning_id: str, strategy: str = "") -> Timeline:
    query = {"strategy": strategy} if strategy else {}
    answer = service.get(f"/v1/tunings/{tuning_id}/timeline", params=query)
    assert answer.status_code == 200, answer.text
    return Timeline.model_validate_json(answer.content)


def test_the_answer_measured_beside_predicted(shown: Shown) -> None:
    tuning_id = shown.first
    with client(shown.database) as service:
        both = timeline(service, tuning_id)
        result = service.get(f"/v1/tunings/{tuning_id}").json()["result"]
    assert both.strategy_id == result["strategy_id"]
    assert both.trial == f"confirm/0/{both.strategy_id}"
    assert both.clock == "shared"
    assert both.measured is not None
    assert both.measured.messages is not None
    assert both.predicted.messages is not None
    assert [m.message for m in both.measured.messages] == [
        m.message for m in both.predicted.messages
    ]
    for message in both.measured.messages:
        assert message.issued_seconds <= message.turn_seconds <= message.arrived_seconds
    assert len(both.differences) == len(both.measured.messages)
    off = [abs(d.measured_seconds - d.predicted_seconds) for d in both.differences]
    assert off == sorted(off, reverse=True)
    assert off[0] > 0


def test_what_was_not_recorded_is_predicted_alone(shown: Shown) -> None:
    tuning_id = shown.first
    with shown.database.reading() as session:
        rows = reports.ranked_strategies(session, tuning_id).items
        trials = reports.trials(session, tuning_id).items
    assert sum(row.recorded for row in rows) == 4
    assert [t.key for t in trials if t.recorded] == [
        t.key for t in trials if t.key.startswith("confirm/0/")
    ]
    silent = next(row for row in rows if not row.recorded)
    ddp = next(row for row in rows if row.is_ddp)
    with client(shown.database) as service:
        alone = timeline(service, tuning_id, silent.strategy_id)
        baseline = timeline(service, tuning_id, ddp.strategy_id)
    assert (alone.measured, alone.trial, alone.clock, alone.differences) == (None, None, None, [])
    assert alone.predicted.messages
    assert baseline.is_ddp
    assert baseline.measured is not None
    assert baseline.measured.messages is None
    assert baseline.measured.compute


def test_before_the_answer_it_shows_ddp(sqlite: Database) -> None:
    held, store = claimed(sqlite, REQUEST)
    with client(sqlite) as service:
        empty = service.get(f"/v1/tunings/{held.job_id}/timeline")
        assert empty.status_code == 404
        assert "proposed no strategy" in empty.json()["detail"]
        run_search(store, REQUEST)
        assert timeline(service, held.job_id).is_ddp


@pytest.mark.parametrize("strategy", ["f" * 32, "no such; one"])
def test_a_strategy_of_another_tuning_is_not_found(shown_sqlite: Shown, strategy: str) -> None:
    tuning_id = shown_sqlite.first
    with client(shown_sqlite.database) as service:
        for what in ("timeline", "trace"):
            answer = service.get(f"/v1/tunings/{tuning_id}/{what}", params={"strategy": strategy})
            assert answer.status_code == 404
            assert answer.json()["thing"] == "strategy"


def test_the_trace_holds_both(shown_sqlite: Shown) -> None:
    with client(shown_sqlite.database) as service:
        answer = service.get(f"/v1/tunings/{shown_sqlite.first}/trace")
    assert "trace.json" in answer.headers["content-disposition"]
    events = json.loads(answer.text)["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"predicted: rank 0", "predicted: network", "measured: network"} <= names


def test_a_domain_that_was_calibrated_predicts_with_its_own_costs(sqlite: Database) -> None:
    held, store = claimed(sqlite, REQUEST)
    run_search(store, REQUEST)
    with client(sqlite) as service:
        before = timeline(service, held.job_id)
        slower = replace(
            REQUEST.domain,
            cluster=replace(
                REQUEST.domain.cluster,
                nodes=tuple(replace(n, bandwidth_gbps=0.1) for n in REQUEST.domain.cluster.nodes),
            ),
        )
        store.use_domain(slower)
        after = timeline(service, held.job_id)
    assert after.predicted.step_seconds > 1.2 * before.predicted.step_seconds
