"""A worker that takes its tunings from a service: what it measures gets there, whatever the line
between them does, and it does nothing else there."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from sqlalchemy import func, select

from autosync.api.client import service_queue as service_queue_module
from autosync.api.client.service_errors import ServiceError
from autosync.api.db import Database
from autosync.api.db.tables import EventRow, OutcomeRow, TrialRow, TuningRow, WorkerRow
from autosync.api.engine import database_store, job_queue, queue_worker, tuning_control
from autosync.api.engine.api_keys import living_key, make_key, revoke_key
from autosync.api.engine.leases import ServiceAway
from autosync.api.engine.queue_worker import TimeLimit, work_off
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.engine.simulator_store import simulator_of, store_simulator
from autosync.api.engine.submission import Submission, enqueue, load_request
from autosync.api.views import reports
from autosync.bundle import read_bundle
from autosync.cancellation import check_cancelled
from autosync.population import encode
from autosync.simulator.learned.learned_simulator import LearnedSimulator
from autosync.trials.contract import TrialRequest
from tests.api.checkpoints import checkpoint, opinionated
from tests.api.client.service_queues import Line, service_queue, undisturbed
from tests.api.engine.test_queue_worker import REQUEST, rows, state
from tests.api.sample import candidates, claimed, run_search, small_request
from tests.search.collect.scripted_launcher import ScriptedLauncher, steady

pytestmark = pytest.mark.timeout(600)
LOCAL = job_queue.Abilities(("local",), 0)
Service = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_worker, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(service_queue_module.ServiceQueue, "look_seconds", 0.05)


def worked_off(database: Database, launcher: ScriptedLauncher, line: Line = undisturbed) -> None:
    """By a worker of a service, until nothing waits."""
    with service_queue(database, line) as queue:
        work_off(queue, threading.Event(), once=True, launcher_of=lambda _: launcher)


def test_a_tuning_is_measured_and_its_answer_is_at_the_service(sqlite: Database) -> None:
    tuning_id = enqueue(sqlite, REQUEST)
    launcher = ScriptedLauncher(steady)
    worked_off(sqlite, launcher)
    measured = rows(sqlite)
    assert len(measured) == len(launcher.ran) > REQUEST.settings.budget
    with sqlite.reading() as session:
        tuning = reports.tuning(session, tuning_id)
        bundle = read_bundle(session.get_one(OutcomeRow, tuning_id).bundle)
        told = set(session.scalars(select(EventRow.kind)))
    assert (tuning.state, tuning.error) == ("finished", None)
    assert tuning.result is not None
    assert bundle.domain_id == REQUEST.domain.id
    assert {"opening", "ranking", "search", "confirm", "done"} <= told
    assert {row.worker for row in measured} == {queue_worker.this_worker()}


def test_a_database_would_have_had_the_same(sqlite: Database) -> None:
    """Of the same request, worked off over the database and over a service."""
    ids = [enqueue(sqlite, REQUEST) for _ in range(2)]
    url = str(sqlite.engine.url)
    held = job_queue.claim(sqlite, "kept away", tuning_id=ids[1])
    assert held is not None
    queue_worker.work(
        url,
        threading.Event(),
        once=True,
        trains=False,
        launcher_of=lambda _: ScriptedLauncher(steady),
    )
    job_queue.release(sqlite, held)
    worked_off(sqlite, ScriptedLauncher(steady))
    keys = [
        [(row.key, tuple(row.iteration_seconds)) for row in rows(sqlite) if row.tuning_id == each]
        for each in ids
    ]
    assert keys[0] == keys[1]
    with sqlite.reading() as session:
        first, second = (session.get_one(OutcomeRow, each) for each in ids)
        assert first.bundle == second.bundle
        assert first.limit_seconds == second.limit_seconds


def test_what_a_lost_worker_measured_is_not_measured_again(sqlite: Database) -> None:
    tuning_id = enqueue(sqlite, REQUEST)
    launcher = ScriptedLauncher(steady)

    def until_the_third(request: TrialRequest, number: int) -> float:
        if number == 3:  # as if its machine were gone: what it still says comes to nothing
            with sqlite.reading() as session:
                fence = session.get_one(TuningRow, tuning_id).fence
            job_queue.expire(sqlite, job_queue.Claim(tuning_id, fence))
            assert job_queue.claim(sqlite, "other:1") is not None
        return steady(request, number)

    worked_off(sqlite, ScriptedLauncher(until_the_third))
    before = rows(sqlite)
    assert [row.fence for row in before] == [1, 1, 1]
    job_queue.expire(sqlite, job_queue.Claim(tuning_id, 2))
    worked_off(sqlite, launcher)
    after = rows(sqlite)
    assert [row.key for row in after[:3]] == [row.key for row in before]
    assert {row.fence for row in after[3:]} == {3}
    assert len(launcher.ran) == len(after) - 3
    assert state(sqlite, tuning_id) == "finished"


@pytest.mark.parametrize(
    ("limit", "most", "parts"), [("PART_ROWS", 4, (0, 4, 6)), ("PART_BYTES", 1, range(7))]
)
def test_what_was_measured_before_comes_in_parts(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, parts: Sequence[int]
) -> None:
    """However many strategies there are: an answer may have 64 MiB."""
    monkeypatch.setattr(database_store, limit, most)
    held, store = claimed(sqlite, small_request())
    run_search(store, small_request())
    asked: list[str] = []

    def line(request: httpx.Request, service: Service) -> httpx.Response:
        asked.append(request.url.query.decode())
        return service(request)

    with service_queue(sqlite, line) as queue:
        known = queue.store(held)
    assert asked == [f"first={first}" for first in parts]
    assert list(known.proposals()) == list(store.proposals())
    assert list(known.trials()) == list(store.trials())


def test_answers_that_are_lost_lose_nothing(sqlite: Database) -> None:
    """Every second answer to a worker never arrives, though the service did what it was asked."""
    tuning_id = enqueue(sqlite, REQUEST)
    sent: Counter[str] = Counter()

    def line(request: httpx.Request, service: Service) -> httpx.Response:
        answer = service(request)
        if request.url.path.endswith(("/trials", "/proposals")):
            sent["all"] += 1
            if sent["all"] % 2:
                sent["lost"] += 1
                raise httpx.ReadError("the connection was reset", request=request)
        return answer

    launcher = ScriptedLauncher(steady)
    worked_off(sqlite, launcher, line)
    assert sent["lost"] > len(rows(sqlite)) == len(launcher.ran)
    assert state(sqlite, tuning_id) == "finished"


def test_a_service_that_restarts_is_waited_for(sqlite: Database) -> None:
    tuning_id = enqueue(sqlite, REQUEST)
    refused: Counter[str] = Counter()

    def line(request: httpx.Request, service: Service) -> httpx.Response:
        path = request.url.path
        asked = f"{request.method} {path}"
        if refused[asked] < 2 and path.endswith(("/claims", "/work", "/trials", "/answer")):
            refused[asked] += 1
            if path.endswith("/claims"):
                raise httpx.ConnectError("connection refused", request=request)
            return httpx.Response(503, json={"detail": "starting"}, request=request)
        return service(request)

    with service_queue(sqlite, line) as queue:
        for _ in range(2):
            with pytest.raises(ServiceAway):
                queue.claim("here:1", 60.0, LOCAL)
        work_off(
            queue, threading.Event(), once=True, launcher_of=lambda _: ScriptedLauncher(steady)
        )
    assert len(refused) == 5
    assert state(sqlite, tuning_id) == "finished"


@pytest.mark.parametrize(
    ("asked", "ends"), [(job_queue.cancel, "cancelled"), (tuning_control.pause, "paused")]
)
def test_a_request_to_end_reaches_the_worker(
    sqlite: Database, asked: Callable[[Database, str], str], ends: str
) -> None:
    tuning_id = enqueue(sqlite, REQUEST)

    def seconds(request: TrialRequest, number: int) -> float:
        if number == 1:
            asked(sqlite, tuning_id)
            while ends == "cancelled":  # as a trial that takes long
                check_cancelled()
                time.sleep(0.01)
        return steady(request, number)

    worked_off(sqlite, ScriptedLauncher(seconds))
    assert state(sqlite, tuning_id) == ends
    assert len(rows(sqlite)) < REQUEST.settings.budget
    tuning_control.resume(sqlite, tuning_id)
    worked_off(sqlite, ScriptedLauncher(steady))
    assert state(sqlite, tuning_id) == "finished"


def test_a_worker_that_stops_gives_its_tuning_back(sqlite: Database) -> None:
    tuning_id = enqueue(sqlite, REQUEST)
    stop = threading.Event()

    def seconds(request: TrialRequest, number: int) -> float:
        stop.set()
        while number:  # the worker is told to stop by another thread, which may be late
            check_cancelled()
            time.sleep(0.01)
        return steady(request, number)

    with service_queue(sqlite) as queue:
        work_off(queue, stop, launcher_of=lambda _: ScriptedLauncher(seconds))
    assert state(sqlite, tuning_id) == "queued"
    with sqlite.reading() as session:
        assert session.scalars(select(WorkerRow)).all() == []


def test_a_tuning_that_cannot_run_fails_and_says_why(sqlite: Database) -> None:
    tuning_id = enqueue(sqlite, REQUEST)
    worked_off(sqlite, ScriptedLauncher(lambda request, number: None))
    with sqlite.reading() as session:
        error = reports.tuning(session, tuning_id).error
    assert error is not None
    assert "DDP" in error


def test_a_revoked_key_ends_the_worker(sqlite: Database) -> None:
    enqueue(sqlite, REQUEST)
    make_key(sqlite, "operator", "admin")
    key = make_key(sqlite, "pods", "worker")

    def seconds(request: TrialRequest, number: int) -> float:
        revoke_key(sqlite, key.id)
        return steady(request, number)

    with (
        service_queue(sqlite, token=key.text) as queue,
        pytest.raises(ServiceError, match="revoked"),
    ):
        work_off(queue, threading.Event(), launcher_of=lambda _: ScriptedLauncher(seconds))
    with sqlite.reading() as session:
        assert living_key(session, key.text) is None
        assert session.scalar(select(func.count()).select_from(TrialRow)) == 0


def test_a_worker_of_another_version_is_refused(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents of one version need not be those of another."""
    monkeypatch.setattr(service_queue_module, "own_version", lambda: "0.0.1")
    with service_queue(sqlite) as queue:
        with pytest.raises(ServiceError, match=r"the worker has autosync 0\.0\.1") as refused:
            queue.register("here:1", 60.0, 0)
        assert refused.value.status == 409
        with pytest.raises(ServiceError, match=r"the worker has autosync 0\.0\.1"):
            queue.claim("here:1", 60.0, LOCAL)


def test_a_worker_loses_its_claim_where_the_service_has_become_another_version(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tuning would fail by the first document of the worker that the service refuses."""
    tuning_id = enqueue(sqlite, REQUEST)
    with service_queue(sqlite) as queue:
        held = queue.claim("here:1", 60.0, LOCAL)
        assert held is not None
        assert queue.renew(held, 60.0)
        monkeypatch.setattr(service_queue_module, "own_version", lambda: "0.0.1")
        assert not queue.renew(held, 60.0)
    assert state(sqlite, tuning_id) == "running"  # another worker goes on after the lease


def test_a_worker_keeps_to_the_operators_minutes(sqlite: Database) -> None:
    enqueue(sqlite, REQUEST, Submission("alice", ServiceLimits(minutes=10)))
    with service_queue(sqlite) as queue:
        held = queue.claim("here:1", 60.0, LOCAL)
        assert held is not None
        out_of_time = TimeLimit(queue.store(held))
        assert not out_of_time("search")
        with sqlite.writing() as session:
            session.get_one(TuningRow, held.job_id).held_seconds = 480
        assert out_of_time("search")
        assert not out_of_time("confirm")
    with sqlite.reading() as session:
        (told,) = session.scalars(select(EventRow.message))
    assert told.startswith("search ends: 7.5 of the 10 minutes")


def test_trained_simulators_predict_at_the_worker_as_at_the_service(
    sqlite: Database, tmp_path: Path
) -> None:
    store_simulator(sqlite, "mine", *checkpoint(tmp_path, opinionated()))
    requests = [replace(REQUEST, simulator=name) for name in ("mine", "learned", "timeline")]
    domain = REQUEST.domain
    population = encode([each.strategy for each in candidates(domain, 4)], domain)
    with service_queue(sqlite) as queue:
        for request in requests:
            tuning_id = enqueue(sqlite, request)
            held = queue.claim("here:1", 60.0, LOCAL)
            assert held is not None
            assert held.job_id == tuning_id
            asked = queue.request(held)
            with sqlite.reading() as session:
                assert asked == load_request(session, tuning_id)
                here = simulator_of(session, asked.simulator, asked.simulator_version)
            there = queue.simulator(held, asked)
            assert isinstance(there, LearnedSimulator) == (request.simulator != "timeline")
            np.testing.assert_array_equal(
                here.predict(domain, population), there.predict(domain, population)
            )
            queue.fail(held, "only asked for its simulator")


def test_a_workers_key_does_nothing_else(sqlite: Database) -> None:
    """It writes to what it has claimed, and neither reads nor starts what it has not."""
    tuning_id = enqueue(sqlite, REQUEST)
    with service_queue(sqlite) as queue:
        for method, path in (
            ("GET", "/v1/tunings"),
            ("GET", f"/v1/tunings/{tuning_id}"),
            ("POST", "/v1/tunings"),
            ("POST", f"/v1/tunings/{tuning_id}/cancel"),
            ("GET", "/v1/keys"),
        ):
            answer = queue.connection.http.request(method, path)
            assert answer.status_code == 403, path
        unclaimed = queue.connection.http.get(f"/v1/queue/claims/{tuning_id}/1/work")
        assert unclaimed.status_code == 410
        unknown = queue.connection.http.get(f"/v1/queue/claims/{'0' * 32}/1/work")
        assert unknown.status_code == 404
        held = queue.claim("here:1", 60.0, LOCAL)
        assert held is not None
        answer = queue.connection.http.post(
            f"/v1/queue/claims/{tuning_id}/{held.fence}/trials", content="{}"
        )
        assert answer.status_code == 422


def test_a_tuning_that_kills_its_workers_is_given_up_until_it_is_resumed(
    sqlite: Database,
) -> None:
    tuning_id = enqueue(sqlite, REQUEST)
    with sqlite.writing() as session:
        session.get_one(TuningRow, tuning_id).fence = tuning_control.MOST_CLAIMS
    worked_off(sqlite, ScriptedLauncher(steady))
    with sqlite.reading() as session:
        tuning = reports.tuning(session, tuning_id)
    assert tuning.state == "failed"
    assert "never came to its end" in str(tuning.error)
    tuning_control.resume(sqlite, tuning_id)
    worked_off(sqlite, ScriptedLauncher(steady))
    assert state(sqlite, tuning_id) == "finished"
