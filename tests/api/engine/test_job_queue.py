"""Claims, leases and fences; also between real processes."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from autosync.api.db import Database
from autosync.api.db.tables import EventRow, TuningRow
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import DatabaseStore, LeaseLost
from autosync.api.engine.job_queue import Claim, expire
from autosync.api.engine.queue_worker import TimeLimit
from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.engine.submission import Submission, enqueue
from autosync.api.engine.tuning_answer import answer_of, outcome_row
from autosync.errors import NotFound, NotSupported
from autosync.search.loop.confirm import conclude
from tests.api.cli.forked_command import ROOT, ForkedCommand
from tests.api.engine.test_queue_worker import state
from tests.api.sample import claimed, run_search, small_request
from tests.waiting import until

REQUEST = small_request()


def taken_over(database: Database, held: Claim) -> Claim:
    """The claim of another worker, since the first one's lease has run out."""
    expire(database, held)
    taken = job_queue.claim(database, "b")
    assert taken is not None
    return taken


def test_the_oldest_is_claimed_first_and_once(database: Database) -> None:
    ids = [enqueue(database, REQUEST) for _ in range(3)]
    claims = [job_queue.claim(database, "a") for _ in range(4)]
    assert [held and held.job_id for held in claims] == [*ids, None]
    assert state(database, ids[0]) == "running"


def test_a_lease_that_ran_out_is_taken_over_under_a_new_fence(database: Database) -> None:
    held, _ = claimed(database, REQUEST)
    assert job_queue.claim(database, "b") is None
    expire(database, held)
    taken = job_queue.claim(database, "b")
    assert taken == Claim(held.job_id, held.fence + 1)
    assert not job_queue.heartbeat(database, held)
    assert job_queue.heartbeat(database, taken)


def test_only_the_holder_can_end_a_tuning(database: Database) -> None:
    held, store = claimed(database, REQUEST)
    run_search(store, REQUEST)
    answer = outcome_row(held.job_id, answer_of(REQUEST, conclude(store)))
    taken = taken_over(database, held)
    ends: tuple[Callable[[], None], ...] = (
        lambda: job_queue.finish(database, held, answer),
        lambda: job_queue.fail(database, held, "late"),
        lambda: job_queue.end_cancelled(database, held),
    )
    for late in ends:
        with pytest.raises(LeaseLost):
            late()
    job_queue.release(database, held)
    assert state(database, held.job_id) == "running"
    job_queue.finish(database, taken, answer)
    assert state(database, held.job_id) == "finished"
    assert job_queue.claim(database, "c") is None


def test_a_tuning_given_back_is_claimed_again(database: Database) -> None:
    held, _ = claimed(database, REQUEST)
    job_queue.release(database, held)
    assert state(database, held.job_id) == "queued"
    assert job_queue.claim(database, "b") == Claim(held.job_id, held.fence + 1)


def test_cancel_before_a_worker_has_it(database: Database) -> None:
    tuning_id = enqueue(database, REQUEST)
    assert job_queue.cancel(database, tuning_id) == "cancelled"
    assert job_queue.cancel(database, tuning_id) == "cancelled"
    assert job_queue.claim(database, "a") is None


def test_cancel_while_a_worker_has_it(database: Database) -> None:
    held, _ = claimed(database, REQUEST)
    assert job_queue.reason_to_end(database, held) is None
    assert job_queue.cancel(database, held.job_id) == "cancelling"
    assert job_queue.reason_to_end(database, held) == "cancelled"
    job_queue.end_cancelled(database, held)
    assert state(database, held.job_id) == "cancelled"


def test_cancel_when_the_worker_is_gone_ends_it_once(database: Database) -> None:
    held, _ = claimed(database, REQUEST)
    expire(database, held)
    ended: set[float | None] = set()
    for _ in range(2):
        assert job_queue.cancel(database, held.job_id) == "cancelled"
        assert job_queue.reason_to_end(database, held) == "lost"
        with database.reading() as session:
            ended.add(session.get_one(TuningRow, held.job_id).finished_at)
    assert len(ended) == 1


def test_what_was_cancelled_stays_so_when_its_worker_dies(database: Database) -> None:
    held, _ = claimed(database, REQUEST)
    job_queue.cancel(database, held.job_id)
    taken = taken_over(database, held)
    assert state(database, held.job_id) == "cancelling"
    job_queue.release(database, taken)
    assert state(database, held.job_id) == "cancelled"


def test_what_a_stopping_worker_gives_back_has_ended_only_if_it_was_cancelled(
    database: Database,
) -> None:
    """Retention removes what ended, by the moment of its end."""
    for cancel, ends in ((False, "queued"), (True, "cancelled")):
        held = job_queue.claim(database, "a") or claimed(database, REQUEST)[0]
        if cancel:
            assert job_queue.cancel(database, held.job_id) == "cancelling"
        job_queue.give_up(database, held, "interrupted")
        with database.reading() as session:
            row = session.get_one(TuningRow, held.job_id)
            assert (row.state, row.finished_at is not None) == (ends, cancel)


def test_what_was_cancelled_ends_without_another_worker_once_its_lease_has_ended(
    database: Database,
) -> None:
    held, others = (claimed(database, REQUEST)[0] for _ in range(2))
    expire(database, others)
    assert job_queue.cancel(database, held.job_id) == "cancelling"
    with database.writing() as session:
        session.connection()
        job_queue.end_abandoned(database)  # waits for no writer where there is nothing to end
    assert state(database, held.job_id) == "cancelling"
    expire(database, held)
    job_queue.end_abandoned(database)
    with database.reading() as session:
        row = session.get_one(TuningRow, held.job_id)
        assert (row.state, row.finished_at is not None) == ("cancelled", True)
    assert state(database, others.job_id) == "running"
    with pytest.raises(LeaseLost):
        job_queue.end_cancelled(database, held)


def test_what_has_ended_cannot_be_cancelled(database: Database) -> None:
    held, _ = claimed(database, REQUEST)
    job_queue.fail(database, held, "no\x00 workers")
    with pytest.raises(NotSupported, match="failed already"):
        job_queue.cancel(database, held.job_id)
    with pytest.raises(NotFound):
        job_queue.cancel(database, "f" * 32)


def test_clients_take_turns_and_nobody_waits_for_a_whole_queue(database: Database) -> None:
    limits = ServiceLimits()
    wanted = ["alice"] * 4 + ["bob"] * 2 + ["carol"]
    ids = [enqueue(database, REQUEST, Submission(client, limits)) for client in wanted]
    claims = [job_queue.claim(database, "a") for _ in ids]
    served = [wanted[ids.index(held.job_id)] for held in claims if held is not None]
    assert served == ["alice", "bob", "carol", "alice", "bob", "alice", "alice"]
    of_alice = [
        held.job_id
        for held, client in zip(claims, served, strict=True)
        if held and client == "alice"
    ]
    assert of_alice == ids[:4]
    late = enqueue(database, REQUEST, Submission("dave", limits))
    enqueue(database, REQUEST, Submission("alice", limits))
    held = job_queue.claim(database, "a")
    assert held is not None
    assert held.job_id == late


def test_the_time_that_workers_have_it_is_counted_and_limited(database: Database) -> None:
    enqueue(database, REQUEST, Submission("alice", ServiceLimits(minutes=10)))
    held = job_queue.claim(database, "a", lease_seconds=100)
    assert held is not None
    out_of_time = TimeLimit(DatabaseStore(database, held.job_id, held.fence))
    assert not out_of_time("search")
    with database.writing() as session:  # as if the lease had been renewed 8 minutes ago
        row = session.get_one(TuningRow, held.job_id)
        row.lease_until = (row.lease_until or 0.0) - 480
    assert job_queue.heartbeat(database, held, lease_seconds=100)
    with database.reading() as session:
        assert 480 <= session.get_one(TuningRow, held.job_id).held_seconds < 600
    assert out_of_time("search")
    assert not out_of_time("confirm")
    with database.writing() as session:
        session.get_one(TuningRow, held.job_id).held_seconds = 600
    assert out_of_time("confirm")
    assert out_of_time("confirm")
    with database.reading() as session:
        told = list(session.scalars(select(EventRow.message).order_by(EventRow.id)))
    assert [message.partition(" ends: ")[::2] for message in told] == [
        ("search", "7.5 of the 10 minutes that this service allows a tuning are over"),
        ("confirm", "10 of the 10 minutes that this service allows a tuning are over"),
    ]


def test_a_worker_that_was_taken_for_dead_has_had_it_no_longer_than_it_did(
    database: Database,
) -> None:
    held, _ = claimed(database, REQUEST)
    expire(database, held)
    assert job_queue.heartbeat(database, held, lease_seconds=100)
    with database.reading() as session:
        assert 0 < session.get_one(TuningRow, held.job_id).held_seconds < 600


def test_processes_share_a_queue_without_doing_anything_twice(
    url: str, database: Database, tmp_path: Path
) -> None:
    ids = {enqueue(database, REQUEST) for _ in range(30)}
    both = tmp_path / "both"
    started = [
        ForkedCommand("tests.api.engine.claimer", [url, name, str(both)], ROOT, os.environ)
        for name in ("a", "b")
    ]
    for process in started:  # else one process might get everything
        until(lambda process=process: process.output()[0] or process.poll(), "a claim")  # type: ignore[misc]
    both.touch()
    outputs = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    lines = "".join(out for out, _ in outputs).splitlines()
    assert sorted(lines) == sorted(f"{key} 1" for key in ids)
    assert all(out for out, _ in outputs)


def test_a_worker_takes_what_it_can_run(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for another worker, and keep nothing back that is behind them."""
    monkeypatch.setenv("AUTOSYNC_PREFIX", "ssh {host}")
    asked = [
        replace(REQUEST, launcher="command"),
        replace(REQUEST, compute="kernels", device="cuda", byte_scale=1.0, time_scale=1.0),
        replace(REQUEST, launcher="auto"),
    ]
    remote, on_gpus, here = [enqueue(database, request) for request in asked]
    pods = job_queue.Abilities(("auto", "local", "testbed"), gpus=0)
    for can, taken in (
        (pods, here),
        (pods, None),
        (replace(pods, gpus=8), on_gpus),
        (job_queue.Abilities(("command",), gpus=0), remote),
    ):
        held = job_queue.claim(database, "a", can=can)
        assert (held and held.job_id) == taken


def test_what_was_cancelled_is_ended_by_any_worker_when_its_own_is_gone(database: Database) -> None:
    """That one may have been the only one that could run it."""
    enqueue(database, replace(REQUEST, launcher="testbed"))
    held = job_queue.claim(database, "a")
    assert held is not None
    job_queue.cancel(database, held.job_id)
    other = job_queue.Abilities(("local",), gpus=0)
    assert job_queue.claim(database, "b", can=other) is None  # its lease has not ended
    expire(database, held)
    assert job_queue.claim(database, "b", can=other) == Claim(held.job_id, held.fence + 1)
