"""Tunings that are paused, and those that wait because others run on the same hosts."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from autosync.api.db import Database
from autosync.api.db.lookup import stored
from autosync.api.db.tables import EventRow, TuningRow
from autosync.api.engine import job_queue, tuning_control
from autosync.api.engine.database_store import DatabaseStore
from autosync.api.engine.job_queue import Claim, expire
from autosync.api.engine.queue_worker import work
from autosync.api.engine.service_limits import ServiceLimits, TryLater
from autosync.api.engine.submission import Submission, enqueue
from autosync.api.engine.tuning_request import TuningRequest
from autosync.cancellation import Cancelled
from autosync.errors import NotFound, NotSupported
from autosync.trials.contract import TrialRequest
from tests.api.conftest import fresh_url
from tests.api.databases import opened
from tests.api.engine.test_job_queue import taken_over
from tests.api.engine.test_queue_worker import REQUEST as SHORT
from tests.api.engine.test_queue_worker import rows, state
from tests.api.sample import candidates, claimed, finished, proposal, small_request
from tests.domains import domain_of, grid_cluster
from tests.search.collect.scripted_launcher import ScriptedLauncher, steady

REQUEST = small_request()
NEVER = threading.Event()


def test_what_waits_is_paused_at_once_and_no_worker_takes_it(database: Database) -> None:
    tuning_id = enqueue(database, REQUEST)
    assert tuning_control.pause(database, tuning_id) == "paused"
    assert tuning_control.pause(database, tuning_id) == "paused"
    assert job_queue.claim(database, "a") is None
    assert tuning_control.resume(database, tuning_id) == "queued"
    assert tuning_control.resume(database, tuning_id) == "queued"
    held = job_queue.claim(database, "a")
    assert held is not None
    with database.reading() as session:
        told = session.scalars(select(EventRow.message).order_by(EventRow.id)).all()
    assert told == ["paused", "goes on"]


def test_what_runs_ends_after_its_trial(database: Database) -> None:
    held, store = claimed(database, REQUEST)
    assert tuning_control.pause(database, held.job_id) == "pausing"
    assert job_queue.reason_to_end(database, held) is None  # the trial is not broken off
    assert job_queue.heartbeat(database, held)
    with pytest.raises(Cancelled, match="paused"):
        store.propose([proposal(candidates(REQUEST.domain, 1)[0])])
    assert len(store.proposals()) == 1
    job_queue.give_up(database, held, "paused")
    assert state(database, held.job_id) == "paused"
    assert job_queue.claim(database, "b") is None


def test_somebody_changes_their_mind(database: Database) -> None:
    held, store = claimed(database, REQUEST)
    tuning_control.pause(database, held.job_id)
    assert tuning_control.resume(database, held.job_id) == "running"
    store.propose([proposal(candidates(REQUEST.domain, 1)[0])])
    tuning_control.pause(database, held.job_id)
    assert job_queue.cancel(database, held.job_id) == "cancelling"
    with pytest.raises(NotSupported, match="is cancelling and cannot be resumed") as refused:
        tuning_control.resume(database, held.job_id)
    assert refused.value.remedy == "Resume it once it is cancelled."


def test_what_was_cancelled_goes_on_where_its_worker_is_gone(database: Database) -> None:
    """On a workstation no other worker may be there to end it first."""
    held, _ = claimed(database, REQUEST)
    assert job_queue.cancel(database, held.job_id) == "cancelling"
    expire(database, held)
    assert tuning_control.resume(database, held.job_id) == "queued"
    assert job_queue.reason_to_end(database, held) == "lost"
    assert job_queue.claim(database, "b") == Claim(held.job_id, held.fence + 1)


def test_a_paused_tuning_can_be_cancelled_and_a_cancelled_one_resumed(database: Database) -> None:
    tuning_id = enqueue(database, REQUEST)
    tuning_control.pause(database, tuning_id)
    assert job_queue.cancel(database, tuning_id) == "cancelled"
    assert tuning_control.resume(database, tuning_id) == "queued"


def test_a_worker_that_dies_while_it_pauses(database: Database) -> None:
    held, _ = claimed(database, REQUEST)
    tuning_control.pause(database, held.job_id)
    taken = taken_over(database, held)
    assert state(database, held.job_id) == "pausing"
    store = DatabaseStore(database, taken.job_id, taken.fence)
    with pytest.raises(Cancelled, match="paused"):
        store.end_if_paused()
    job_queue.release(database, taken)
    assert state(database, held.job_id) == "paused"


def test_a_dead_workers_tuning_is_paused_at_once(database: Database) -> None:
    held, _ = claimed(database, REQUEST)
    expire(database, held)
    assert tuning_control.pause(database, held.job_id) == "paused"
    assert job_queue.reason_to_end(database, held) == "lost"


def test_one_that_is_tried_again_is_listed_again(sqlite: Database) -> None:
    """Nobody should lose sight of what runs."""
    tuning_id = enqueue(sqlite, REQUEST)
    job_queue.cancel(sqlite, tuning_id)
    tuning_control.write_notes(sqlite, tuning_id, archived=True)
    assert tuning_control.resume(sqlite, tuning_id) == "queued"
    with sqlite.reading() as session:
        assert not session.get_one(TuningRow, tuning_id).archived


def test_what_is_resumed_at_the_same_moment_is_not_archived(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, where transactions that write run side by side."""

    def resumed_meanwhile(*asked: Any) -> Any:
        row = stored(*asked)
        monkeypatch.setattr(tuning_control, "stored", stored)
        assert tuning_control.resume(database, tuning_id) == "queued"
        return row

    with fresh_url(request, "postgresql") as url, opened(url) as database:
        tuning_id = enqueue(database, REQUEST)
        job_queue.cancel(database, tuning_id)
        monkeypatch.setattr(tuning_control, "stored", resumed_meanwhile)
        with pytest.raises(NotSupported, match="is queued and cannot be archived"):
            tuning_control.write_notes(database, tuning_id, archived=True)
        with database.reading() as session:
            assert not session.get_one(TuningRow, tuning_id).archived


def test_what_has_ended_is_neither_paused_nor_resumed(database: Database) -> None:
    tuning_id = finished(database, REQUEST)
    changes: tuple[Callable[[Database, str], str], ...] = (
        tuning_control.pause,
        tuning_control.resume,
    )
    for change in changes:
        with pytest.raises(NotSupported, match="is finished and cannot be"):
            change(database, tuning_id)
        with pytest.raises(NotFound):
            change(database, "0" * 32)


def test_paused_tunings_count_in_a_clients_queue(database: Database) -> None:
    mine = Submission("alice", ServiceLimits(queued=2))
    tuning_control.pause(database, enqueue(database, REQUEST, mine))
    enqueue(database, REQUEST, mine)
    with pytest.raises(TryLater, match="2 of your tunings wait"):
        enqueue(database, REQUEST, mine)


def test_what_has_ended_is_tried_again_where_its_clients_queue_has_room(database: Database) -> None:
    limits = ServiceLimits(queued=1)
    mine = Submission("alice", limits)
    ended = enqueue(database, REQUEST, mine)
    job_queue.cancel(database, ended)
    waiting = enqueue(database, REQUEST, mine)
    with pytest.raises(TryLater, match="1 of your tunings wait"):
        tuning_control.resume(database, ended, limits)
    assert state(database, ended) == "cancelled"
    tuning_control.pause(database, waiting)
    assert tuning_control.resume(database, waiting, limits) == "queued"  # it has its place
    job_queue.cancel(database, waiting)
    assert tuning_control.resume(database, ended, limits) == "queued"


def test_a_tuning_pauses_between_trials_and_goes_on(sqlite_url: str, sqlite: Database) -> None:
    """It is asked to pause while its first trial runs."""
    tuning_id = enqueue(sqlite, SHORT)

    def seconds(request: TrialRequest, number: int) -> float:
        if number == 0:
            assert tuning_control.pause(sqlite, tuning_id) == "pausing"
        return steady(request, number)

    launcher = ScriptedLauncher(seconds)
    for ends, change in (("paused", tuning_control.resume), ("finished", None)):
        work(sqlite_url, NEVER, once=True, trains=False, launcher_of=lambda _: launcher)
        assert state(sqlite, tuning_id) == ends
        if change is not None:
            (first,) = rows(sqlite)
            assert change(sqlite, tuning_id) == "queued"
    after = rows(sqlite)
    assert (after[0].key, after[0].fence) == (first.key, 1)
    assert {row.fence for row in after[1:]} == {2}
    assert len(launcher.ran) == len(after)


def on_hosts(nodes: int, launcher: str) -> TuningRequest:
    return replace(REQUEST, domain=domain_of(cluster=grid_cluster(nodes)), launcher=launcher)


def enqueued(
    database: Database, monkeypatch: pytest.MonkeyPatch, *asked: TuningRequest
) -> list[str]:
    monkeypatch.setenv("AUTOSYNC_PREFIX", "ssh {host}")
    monkeypatch.setenv("AUTOSYNC_RAY_ADDRESS", "127.0.0.1:6379")
    return [enqueue(database, request) for request in asked]


def test_one_tuning_at_a_time_on_the_same_hosts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other, same = enqueued(
        database, monkeypatch, on_hosts(4, "command"), on_hosts(2, "command"), on_hosts(4, "ray")
    )
    claims = [job_queue.claim(database, name) for name in "abc"]
    assert [held and held.job_id for held in claims] == [first, other, None]
    assert claims[0] is not None
    job_queue.release(database, claims[0])
    held = job_queue.claim(database, "c", tuning_id=same)
    assert held is not None
    assert job_queue.claim(database, "a") is None
    expire(database, held)  # its worker is dead: the hosts are free
    taken = job_queue.claim(database, "a")
    assert taken is not None
    assert taken.job_id == first


def test_a_lease_that_ran_out_is_not_renewed_where_another_tuning_has_its_hosts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a service was away for longer than a lease: two would measure each other."""
    monkeypatch.setenv("AUTOSYNC_PREFIX", "ssh {host}")
    for client in ("alice", "bob"):
        enqueue(database, on_hosts(4, "command"), Submission(client, ServiceLimits()))
    first = job_queue.claim(database, "a")
    assert first is not None
    expire(database, first)  # it is Bob's turn
    second = job_queue.claim(database, "b")
    assert second is not None
    assert second.job_id != first.job_id
    assert not job_queue.heartbeat(database, first)
    assert job_queue.heartbeat(database, second)
    job_queue.release(database, second)
    assert job_queue.heartbeat(database, first)


def test_trials_on_the_workers_own_machine_wait_for_nobody_elses(database: Database) -> None:
    ids = [enqueue(database, REQUEST) for _ in range(2)]
    claims = [job_queue.claim(database, name) for name in "ab"]
    assert [held and held.job_id for held in claims] == ids
    with database.reading() as session:
        assert {row.hosts for row in session.scalars(select(TuningRow))} == {""}
