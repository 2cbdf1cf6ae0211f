"""The worker: trainings beside tunings, what fails, what stops. `test_ending` has real signals; the
tuning that a test run makes (`tests.api.real_tuning`) is killed and resumed."""

import threading
from dataclasses import replace

import pytest
from sqlalchemy import select, text

from autosync.api.db import Database
from autosync.api.db.tables import EventRow, SimulatorRow, TrialRow, TuningRow
from autosync.api.engine import job_queue, version_training
from autosync.api.engine.job_queue import Claim
from autosync.api.engine.queue_worker import launcher_begun_with, run_claim, work
from autosync.api.engine.submission import enqueue
from autosync.api.engine.tuning_control import MOST_CLAIMS, resume
from autosync.api.engine.tuning_request import TuningRequest
from autosync.api.engine.work_queue import DatabaseQueue
from autosync.api.views import reports
from autosync.errors import NotSupported
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import MemoryStore
from autosync.simulator.learned.features.feature_names import FEATURE_VERSION
from autosync.simulator.simulator_contract import Learner
from autosync.trials.contract import Pool, TrialError, TrialRequest, TrialResult, Workload
from tests.api.sample import claimed, run_search
from tests.api.simulator_versions import store_versions
from tests.domains import domain_of, grid_cluster
from tests.search.collect.scripted_launcher import ScriptedLauncher, steady
from tests.waiting import until

pytestmark = pytest.mark.timeout(900)
SETTINGS = Settings(budget=4, proposals=64, repeats=3, warmup=1, iterations=2, probe=False)
REQUEST = TuningRequest(domain_of(cluster=grid_cluster(2)), SETTINGS, launcher="local")


def rows(database: Database) -> list[TrialRow]:
    with database.reading() as session:
        return list(session.scalars(select(TrialRow).order_by(TrialRow.position)))


def state(database: Database, tuning_id: str) -> str:
    with database.reading() as session:
        return session.get_one(TuningRow, tuning_id).state


def test_tunings_do_not_wait_for_a_training(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that trains measures them; it ends when both have."""
    measured: list[str] = []

    def until_a_tuning_has_ended(database: Database, held: Claim) -> None:
        if not measured:  # and not the training that this tuning asks for
            measured.append(enqueue(database, REQUEST))
            until(lambda: state(database, measured[0]) == "finished", "a tuning beside a training")
        job_queue.fail(database, held, "it only waited")

    monkeypatch.setattr(version_training, "run_training", until_a_tuning_has_ended)
    with sqlite.writing() as session:
        job_queue.enqueue_training(session)
    launcher = ScriptedLauncher(steady)
    work(str(sqlite.engine.url), threading.Event(), once=True, launcher_of=lambda _: launcher)
    assert state(sqlite, measured[0]) == "finished"


class Refusing:
    """A launcher of a machine that cannot run anything."""

    name = "refusing"

    def open(self, workload: Workload) -> Pool:
        raise NotSupported("no links here.", remedy="Get some.")


def test_a_tuning_that_cannot_run_fails_and_says_why(sqlite: Database) -> None:
    tuning_id = enqueue(sqlite, REQUEST)
    work(
        str(sqlite.engine.url),
        threading.Event(),
        once=True,
        trains=False,
        launcher_of=lambda _: Refusing(),
    )
    with sqlite.reading() as session:
        tuning = reports.tuning(session, tuning_id)
    assert tuning.state == "failed"
    assert tuning.error == "no links here. Get some."


LOCAL = "local (unshaped links)"
TESTBED = "testbed (2 nodes, link rates within 0.3% of the cluster file, latency not emulated)"


@pytest.mark.parametrize(
    ("asked", "ran", "seconds", "goes_on_with"),
    [
        ("auto", TESTBED, 0.1, "testbed"),
        ("auto", LOCAL, 0.1, "local"),
        ("auto", LOCAL, None, "auto"),  # nothing that another one's trials would be compared with
        ("auto", "", 0.1, "auto"),
        ("local", TESTBED, 0.1, "local"),
    ],
)
def test_a_tuning_goes_on_where_it_was_measured(
    asked: str, ran: str, seconds: float | None, goes_on_with: str
) -> None:
    """What `auto` stands for on another machine, or on a machine under load, may be another."""
    store = MemoryStore()
    error = None if seconds else TrialError("crashed", "the worker fell over")
    store.record(TrialResult("a", (), seconds, 0.0, error, ran, 1.0, 1.0))
    assert launcher_begun_with(asked, store) == goes_on_with
    assert launcher_begun_with(asked, MemoryStore()) == asked


class Stopping(Refusing):
    """Asks the worker to stop while the tuning starts."""

    def __init__(self, stop: threading.Event):
        self.stop = stop

    def open(self, workload: Workload) -> Pool:
        self.stop.set()
        return super().open(workload)


def test_a_worker_that_stops_gives_its_tuning_back(sqlite: Database) -> None:
    tuning_id = enqueue(sqlite, REQUEST)
    stop = threading.Event()
    work(str(sqlite.engine.url), stop, launcher_of=lambda _: Stopping(stop))
    assert state(sqlite, tuning_id) == "queued"


def test_a_worker_takes_nothing_more_from_a_database_that_was_upgraded(sqlite: Database) -> None:
    """It would fail tunings that it cannot read."""
    ids = [enqueue(sqlite, REQUEST) for _ in range(2)]

    def upgraded(request: TrialRequest, number: int) -> float:
        if number == 0:
            with sqlite.writing() as session:
                session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        return steady(request, number)

    url, launcher = str(sqlite.engine.url), ScriptedLauncher(upgraded)
    with pytest.raises(NotSupported, match="the database has schema revision 9999, and had"):
        work(url, threading.Event(), once=True, trains=False, launcher_of=lambda _: launcher)
    assert sorted(state(sqlite, each) for each in ids) == ["finished", "queued"]


def failure_at(database: Database, tuning_id: str, claims: int) -> str:
    """How the tuning fails at the claim of this number."""
    with database.writing() as session:
        tuning = session.get_one(TuningRow, tuning_id)
        tuning.state, tuning.fence = "queued", claims - 1
    held = job_queue.claim(database, "a")
    assert held == Claim(tuning_id, claims)
    run_claim(DatabaseQueue(database), held, threading.Event(), lambda _: Refusing())
    with database.reading() as session:
        return str(reports.tuning(session, tuning_id).error)


@pytest.mark.parametrize("measured", [0, 4])
def test_a_tuning_that_kills_its_workers_is_not_tried_for_ever(
    database: Database, measured: int
) -> None:
    """Each trial that it has measured is another chance: so it comes on."""
    first, store = claimed(database, REQUEST)
    if measured:
        run_search(store, REQUEST)
    job_queue.release(database, first)
    for claims, dies in ((MOST_CLAIMS + measured, False), (MOST_CLAIMS + measured + 1, True)):
        assert ("never came to its end" in failure_at(database, first.job_id, claims)) is dies


def test_one_that_was_given_up_and_is_resumed_has_as_many_chances_again(
    database: Database,
) -> None:
    """What killed its workers was mended meanwhile."""
    tuning_id = enqueue(database, REQUEST)
    for resumed in range(3):
        most = MOST_CLAIMS * (1 + resumed)
        for claims, dies in ((most, False), (most + 1, True)):
            assert ("never came to its end" in failure_at(database, tuning_id, claims)) is dies
        assert resume(database, tuning_id) == "queued"


def test_a_tuning_whose_simulator_an_upgrade_has_left_behind_goes_on_with_the_one_in_use(
    database: Database,
) -> None:
    """It was asked for, and waited, under an AutoSync whose simulators read other features."""
    store_versions(database)
    held, _ = claimed(database, replace(REQUEST, simulator="learned"))
    queue = DatabaseQueue(database)
    assert queue.request(held).simulator_version == 3
    with database.writing() as session:
        session.get_one(SimulatorRow, "version-3").feature_version = FEATURE_VERSION - 1
    for _ in range(2):  # as at another claim
        request = queue.request(held)
        assert request.simulator_version == 0
        assert isinstance(queue.simulator(held, request), Learner)
    with database.reading() as session:
        told = session.scalars(select(EventRow.message)).all()
    assert told == ["version 3 of the simulator can no longer be used: version 0 ranks"]
