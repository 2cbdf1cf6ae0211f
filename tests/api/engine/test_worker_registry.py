"""Which workers live, what they can, and what is refused where none can."""

from fastapi.testclient import TestClient

from autosync.api.db import Database
from autosync.api.db.tables import TuningRow
from autosync.api.engine import job_queue
from autosync.api.engine.submission import enqueue
from autosync.api.engine.tuning_control import resume
from autosync.api.engine.worker_registry import gpus_of_workers, register, unregister
from autosync.api.http.app import create_app
from autosync.api.views.service import readiness
from tests.api.sample import small_request


def test_a_worker_lives_while_it_says_so(database: Database) -> None:
    register(database, "dead", lease_seconds=-1.0, gpus=1)
    register(database, "first", lease_seconds=60.0, gpus=0)
    register(database, "first", lease_seconds=60.0, gpus=0)
    register(database, "second", lease_seconds=60.0, gpus=2)
    with database.reading() as session:
        assert sorted(gpus_of_workers(session)) == [0, 2]
    unregister(database, "second")
    with database.reading() as session:
        assert gpus_of_workers(session) == [0]


def test_readiness_counts_workers_and_the_age_of_the_queue(database: Database) -> None:
    with TestClient(create_app(database), base_url="http://127.0.0.1") as client:
        answer = client.get("/v1/ready")
        assert answer.status_code == 503
        none = {"status": "no worker lives", "workers": 0, "queued": 0}
        assert answer.json() == {**none, "oldest_queued_seconds": 0.0}
        enqueue(database, small_request())
        register(database, "first", lease_seconds=60.0, gpus=0)
        answer = client.get("/v1/ready")
        assert answer.status_code == 200
        assert (answer.json()["workers"], answer.json()["queued"]) == (1, 1)
        assert 0 < answer.json()["oldest_queued_seconds"] < 600


def test_a_tuning_that_is_resumed_waits_since_then(database: Database) -> None:
    tuning_id = enqueue(database, small_request())

    def waited_seconds() -> float:
        with database.reading() as session:
            return readiness(session).oldest_queued_seconds

    with database.writing() as session:
        session.get_one(TuningRow, tuning_id).created_at -= 3600
    assert waited_seconds() > 3000
    job_queue.cancel(database, tuning_id)
    resume(database, tuning_id)
    assert waited_seconds() < 600


def test_gpus_that_no_worker_has_are_refused(client: TestClient, sqlite: Database) -> None:
    asked = {"graph": "resnet50", "cluster": "example-4x1", "launcher": "local"}
    asked |= {"compute": "kernels", "compute_device": "cuda"}
    register(sqlite, "first", lease_seconds=60.0, gpus=0)
    refused = client.post("/v1/tunings", json=asked)
    assert refused.status_code == 409
    assert refused.json()["thing"] == "compute_device"
    assert client.get("/v1/tunings").json()["total"] == 0
    register(sqlite, "second", lease_seconds=60.0, gpus=1)
    assert client.post("/v1/tunings", json=asked).status_code == 202
