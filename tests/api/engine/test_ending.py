"""What runs ends when it is asked to, whatever it is at: a real worker, real ranks, real signals.

No phase here would end by itself before the test gives up, so an end is the answer to the request.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import select

from autosync.api.cli import stop_signals
from autosync.api.db import Database, connect
from autosync.api.db.tables import EventRow, ProposalRow, TrialRow, TuningRow
from autosync.api.engine import job_queue, leases
from autosync.api.engine.leases import ClaimedWork, EndReason, ServiceAway, leased
from autosync.api.engine.submission import enqueue
from autosync.api.engine.tuning_request import TuningRequest
from autosync.cancellation import check_cancelled
from autosync.environment import PASSED_VARIABLE
from autosync.search.loop.settings import Settings
from autosync.trials.pool.machine_lock import shared_machine_lock
from tests.api.cli.forked_command import ROOT, ForkedCommand
from tests.api.http.serving import children
from tests.autosync.trials.conftest import MARK
from tests.autosync.trials.contract_suite import marked_processes
from tests.domains import domain_of, grid_cluster
from tests.waiting import until

pytestmark = pytest.mark.timeout(900)
RANKS = 3
HOUR = 3600.0
SETTINGS = Settings(budget=4, proposals=64, repeats=300, warmup=1, iterations=2, probe=False)
QUICK = TuningRequest(
    domain_of(cluster=grid_cluster(RANKS)), SETTINGS, simulator="timeline", launcher="testbed"
)
ENDLESS = 10**8
"""Proposals: a ranking of days."""


@dataclass(frozen=True, slots=True)
class Running:
    """A worker and the database that it works on."""

    process: ForkedCommand
    database: Database

    def events(self, tuning_id: str) -> list[tuple[str, str]]:
        """(kind, message), oldest first."""
        query = select(EventRow.kind, EventRow.message).where(EventRow.tuning_id == tuning_id)
        with self.database.reading() as session:
            return [(row.kind, row.message) for row in session.execute(query.order_by(EventRow.id))]

    def trials(self, tuning_id: str) -> list[tuple[str, int]]:
        """(key, claim under which it ran), oldest first."""
        query = select(TrialRow.key, TrialRow.fence).where(TrialRow.tuning_id == tuning_id)
        with self.database.reading() as session:
            return [
                (row.key, row.fence) for row in session.execute(query.order_by(TrialRow.position))
            ]

    def state(self, tuning_id: str) -> tuple[str, str | None]:
        with self.database.reading() as session:
            row = session.get_one(TuningRow, tuning_id)
            return row.state, row.worker

    def started(self) -> list[int]:
        """Processes that the worker has started, however far below, but the one that it forks all
        ranks from."""
        forking: set[int] = set()
        with contextlib.suppress(OSError):  # the worker or a child of it has ended
            forking.update(
                each
                for each in children(self.process.pid)
                if b"fork_server" in Path(f"/proc/{each}/cmdline").read_bytes()
            )
        return [each for each in marked_processes() if each not in forking]


@contextmanager
def running(url: str) -> Iterator[Running]:
    environment = {**os.environ, MARK[0]: MARK[1], PASSED_VARIABLE: MARK[0]}
    process = ForkedCommand("tests.api.engine.ending_worker", [url], ROOT, environment)
    database = connect(url)
    try:
        yield Running(process, database)
    finally:
        database.close()
        process.kill()


@pytest.fixture(scope="module")
def worker(module_url: str, testbed_possible: None) -> Iterator[Running]:
    with running(module_url) as started:
        yield started


def said(kind: str, message: str = "") -> Callable[[Running, str], bool]:
    """The tuning has told of this."""
    return lambda worker, key: any(
        (one, message in text) == (kind, True) for one, text in worker.events(key)
    )


def probes(worker: Running, key: str) -> bool:
    return said("opening", "what messages cost")(worker, key) and ranks_live(worker, key)


def ranks_live(worker: Running, key: str) -> bool:
    return len(worker.started()) >= RANKS


def runs_a_trial(worker: Running, key: str) -> bool:
    """What was ranked stands proposed, and the ranks, which lived before, have it to run."""
    with worker.database.reading() as session:
        proposed = session.scalar(select(ProposalRow.key).where(ProposalRow.tuning_id == key))
    return proposed is not None and ranks_live(worker, key)


PROBING = replace(QUICK, settings=replace(SETTINGS, probe=True))
RANKING = replace(QUICK, settings=replace(SETTINGS, proposals=ENDLESS))
IN_A_TRIAL = replace(
    QUICK,
    domain=domain_of(cluster=grid_cluster(RANKS), operation_seconds=HOUR),
    settings=replace(SETTINGS, timeout_seconds=10 * HOUR),
)
PHASES = {
    "waiting": (replace(QUICK, launcher="auto"), said("waiting"), "waiting"),
    "probing": (PROBING, probes, "opening"),
    "ranking": (RANKING, said("ranking"), "ranking"),
    "in a trial": (IN_A_TRIAL, runs_a_trial, "ranking"),
    "in a local trial": (replace(IN_A_TRIAL, launcher="local"), runs_a_trial, "ranking"),
    "confirming": (QUICK, said("confirm"), "confirm"),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_cancelled_tuning_ends_in_the_phase_it_is_in(worker: Running, phase: str) -> None:
    request, reached, kind = PHASES[phase]
    lock = shared_machine_lock().held() if phase == "waiting" else contextlib.nullcontext()
    with lock:
        tuning_id = enqueue(worker.database, request)
        until(lambda: reached(worker, tuning_id), phase)
        opened = [text for one, text in worker.events(tuning_id) if one == "opening"]
        trials = worker.trials(tuning_id)
        assert job_queue.cancel(worker.database, tuning_id) == "cancelling"
        until(lambda: worker.state(tuning_id)[0] == "cancelled", f"the end of {phase}", 60)
    kinds = [one for one, _ in worker.events(tuning_id)]
    assert [one for one in kinds if one == kind or one != "waiting"][-1] == kind  # or for quiet
    assert [text for one, text in worker.events(tuning_id) if one == "opening"] == opened
    kept = worker.trials(tuning_id)
    assert kept[: len(trials)] == trials
    assert bool(kept) == (phase == "confirming")
    until(lambda: not worker.started(), "the end of its ranks and its testbed")
    assert worker.process.poll() is None


def test_a_worker_that_is_to_stop_gives_back_what_runs_and_another_goes_on(
    worker: Running, module_url: str
) -> None:
    tuning_id = enqueue(worker.database, QUICK)
    until(lambda: len(worker.trials(tuning_id)) > 2, "three trials")
    worker.process.send_signal(signal.SIGTERM)
    worker.process.wait()
    assert worker.state(tuning_id) == ("queued", None)
    before = worker.trials(tuning_id)
    until(lambda: not worker.started(), "the end of its ranks")
    with running(module_url) as other:
        until(lambda: len(other.trials(tuning_id)) > len(before), "another trial")
    after = other.trials(tuning_id)
    assert after[: len(before)] == before
    assert {fence for _, fence in before} == {1}
    assert {fence for _, fence in after[len(before) :]} == {2}


def test_work_that_looks_at_no_token_is_given_up_in_its_absence() -> None:
    """Compiled code does not look; what it still finds is written by nobody."""
    asked: list[EndReason | None] = [None]
    given_up: list[EndReason] = []
    work = ClaimedWork(lambda seconds: True, lambda: asked[0], given_up.append)
    with leased(work, 15.0):
        asked[0] = "cancelled"
        until(lambda: bool(given_up), "giving it up", 60)
        went_on = True
    assert went_on
    assert given_up == ["cancelled"]


@pytest.mark.parametrize("error", [None, ServiceAway(), ValueError("no answer of a service")])
def test_a_claim_that_no_longer_holds_ends_the_work(error: Exception | None) -> None:
    """error: of every attempt to renew it, for as long as the lease."""
    given_up: list[EndReason] = []

    def renew(seconds: float) -> bool:
        if error is not None:
            raise error
        return False

    work = ClaimedWork(renew, lambda: None, given_up.append)

    def looks() -> bool:
        check_cancelled()
        return False

    with leased(work, 0.0):
        until(looks, "never", 60)
    assert set(given_up) == {"lost"}


def test_what_was_claimed_is_given_back_before_its_process_leaves() -> None:
    assert leases.POLL_SECONDS + leases.OVERDUE_SECONDS < stop_signals.LEAVE_SECONDS
