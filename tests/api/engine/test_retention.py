"""What is removed after the days that an operator keeps, and what stays."""

import threading
from dataclasses import replace

import pytest
from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint, func, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from autosync.api.db import Database
from autosync.api.db.tables import (
    Base,
    ClusterRow,
    DomainRow,
    EventRow,
    GraphRow,
    JobRow,
    OutcomeRow,
    ProposalRow,
    SimulatorPromotionRow,
    SimulatorRow,
    SimulatorTrainingRow,
    SimulatorVersionRow,
    StrategyRow,
    StrategySummaryRow,
    TrialRow,
    TuningRow,
)
from autosync.api.engine import job_queue, queue_worker, retention, tuning_control
from autosync.api.engine.queue_worker import work
from autosync.api.engine.retention import prune, prune_versions
from autosync.api.engine.simulator_store import lock_usable_version, trained_files
from autosync.api.engine.submission import enqueue
from autosync.api.views import reports
from autosync.api.views.simulators import simulator_account, simulator_page
from autosync.errors import NotFound
from autosync.search.loop.outcome import TuningEvent
from tests.api.sample import claimed, finished, small_request
from tests.api.simulator_versions import store_versions

DAYS_OLD = 100


def aged(database: Database, *tuning_ids: str) -> None:
    """They ended, and what they stored was stored, long ago."""
    with database.writing() as session:
        for table in (JobRow, EventRow, DomainRow, StrategyRow):
            query = update(table).values(created_at=table.created_at - DAYS_OLD * 86_400)
            if table is EventRow:
                query = query.where(EventRow.tuning_id.in_(tuning_ids))
            session.execute(query)
        ended = JobRow.finished_at - DAYS_OLD * 86_400
        session.execute(update(JobRow).where(JobRow.id.in_(tuning_ids)).values(finished_at=ended))


def counts(database: Database) -> dict[str, int]:
    with database.reading() as session:
        return {
            table.name: session.scalar(select(func.count()).select_from(table)) or 0
            for table in Base.metadata.sorted_tables
        }


def test_old_tunings_go_with_all_that_is_theirs(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS", 5)  # of documents more than one transaction
    kept = finished(database)
    with database.reading() as session:
        own = {row.hash for row in session.scalars(select(StrategyRow))}
    before = counts(database)
    other = replace(small_request(8), byte_scale=0.25)
    old = finished(database, other)
    aged(database, old)
    assert prune(database, DAYS_OLD + 1) == 0
    assert prune(database, DAYS_OLD - 1) == 1
    after = counts(database)
    for table in (EventRow, ProposalRow, TrialRow, OutcomeRow, StrategySummaryRow, JobRow):
        assert after[table.__tablename__] == before[table.__tablename__], table
    with database.reading() as session:
        assert [each.id for each in reports.tunings(session, 9).items] == [kept]
        assert {row.hash for row in session.scalars(select(StrategyRow))} == own
        assert reports.tuning(session, kept).result is not None
    assert prune(database, DAYS_OLD - 1) == 0


def test_the_last_tuning_leaves_models_and_clusters(database: Database) -> None:
    aged(database, finished(database))
    prune(database, 1)
    left = counts(database)
    assert left[GraphRow.__tablename__] == left[ClusterRow.__tablename__] == 1
    for table in (DomainRow, StrategyRow, TrialRow, ProposalRow, EventRow):
        assert left[table.__tablename__] == 0, table


def test_a_tuning_that_is_not_at_its_end_stays_without_its_old_events(database: Database) -> None:
    held, store = claimed(database, small_request())
    store.report(TuningEvent("waiting", "long ago"))
    aged(database, held.job_id)
    store.report(TuningEvent("waiting", "just now"))
    prune(database, 1)
    with database.reading() as session:
        assert session.get(TuningRow, held.job_id) is not None
        assert [row.message for row in session.scalars(select(EventRow))] == ["just now"]


def test_a_tuning_keeps_the_chances_that_it_was_given_long_ago(database: Database) -> None:
    tuning_id = enqueue(database, small_request())
    job_queue.cancel(database, tuning_id)
    assert tuning_control.resume(database, tuning_id) == "queued"
    aged(database, tuning_id)
    prune(database, 1)
    with database.reading() as session:
        held = job_queue.Claim(tuning_id, tuning_control.MOST_CLAIMS + 1)
        tuning_control.refuse_hopeless(session, held)


def test_one_that_is_tried_again_meanwhile_stays(database: Database) -> None:
    held, _ = claimed(database, small_request())
    job_queue.fail(database, held, "for once")
    aged(database, held.job_id)

    def tried_again() -> bool:
        tuning_control.resume(database, held.job_id)
        return False

    assert prune(database, 1, tried_again) == 0
    with database.reading() as session:
        assert session.get_one(TuningRow, held.job_id).state == "queued"


def test_stopped_it_leaves_nothing_of_a_tuning_or_all_of_it(database: Database) -> None:
    ids = [finished(database), finished(database)]
    aged(database, *ids)
    before = counts(database)
    assert prune(database, 1, lambda: True) == 0
    assert counts(database) == before
    asked: list[bool] = []

    def at_the_second() -> bool:
        asked.append(True)
        return len(asked) == 2

    assert prune(database, 1, at_the_second) == 1
    after = counts(database)
    for table in (EventRow, ProposalRow, TrialRow, OutcomeRow, StrategySummaryRow):
        assert 2 * after[table.__tablename__] == before[table.__tablename__], table
    with database.reading() as session:
        (left,) = reports.tunings(session, 9).items
        assert reports.tuning(session, left.id).result is not None
    assert prune(database, 1) == 1


def assert_kept_until_its_end(database: Database, tuning_id: str, kept: set[int]) -> None:
    for left in (kept, {3}):
        with database.writing() as session:
            prune_versions(session)
        assert kept_versions(database) == left
        job_queue.cancel(database, tuning_id)


def test_the_newest_versions_are_kept_and_those_in_use(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_VERSIONS", 1)
    store_versions(sqlite)
    with sqlite.writing() as session:
        session.add(SimulatorPromotionRow(number=2))
        prune_versions(session)
    waiting = enqueue(sqlite, replace(small_request(), simulator="learned"))
    with sqlite.reading() as session:
        assert set(session.scalars(select(SimulatorVersionRow.number))) == {2, 3}
        assert set(session.scalars(select(SimulatorRow.name))) == {"version-2", "version-3"}
        assert session.get_one(TuningRow, waiting).simulator_version == 2
    with sqlite.writing() as session:
        session.add(SimulatorPromotionRow(number=3))
    assert_kept_until_its_end(sqlite, waiting, {2, 3})


def test_a_version_that_a_tuning_asks_for_by_its_name_is_kept_until_its_end(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_VERSIONS", 1)
    store_versions(sqlite)
    waiting = enqueue(sqlite, replace(small_request(), simulator="version-1"))
    assert_kept_until_its_end(sqlite, waiting, {1, 3})


def test_no_page_is_named_of_a_version_that_was_removed(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_VERSIONS", 1)
    store_versions(sqlite)
    names = ("version-2", "learned", "timeline")
    ids = [enqueue(sqlite, replace(small_request(), simulator=name)) for name in names]
    job_queue.cancel(sqlite, ids[0])
    with sqlite.writing() as session:
        prune_versions(session)
    with sqlite.reading() as session:
        pages = [simulator_page(session, reports.tuning(session, each)) for each in ids]
        assert pages == [None, "version-3", None]
        assert simulator_account(session, "version-3").kept_parents == ("version-0",)


def test_one_whose_version_was_removed_goes_on_with_the_one_in_use(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_VERSIONS", 1)
    store_versions(sqlite)
    with sqlite.writing() as session:
        session.add(SimulatorPromotionRow(number=2))
    learned = replace(small_request(), simulator="learned")
    tuning_id = enqueue(sqlite, learned)
    job_queue.cancel(sqlite, tuning_id)
    with sqlite.writing() as session:
        session.add(SimulatorPromotionRow(number=3))
    with sqlite.writing() as session:
        prune_versions(session)
    assert tuning_control.resume(sqlite, tuning_id) == "queued"
    with sqlite.reading() as session:
        number = session.get_one(TuningRow, tuning_id).simulator_version
        files = trained_files(session, "learned", number)
        told = session.scalars(select(EventRow.message).order_by(EventRow.id)).all()
    assert files is not None
    assert (number, files[0]) == (3, "version-3")
    assert told[-1] == "version 2 of the simulator can no longer be used: version 3 ranks"


def test_one_that_names_a_simulator_that_was_removed_is_not_resumed(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker would take it up, and fail it for that."""
    monkeypatch.setattr(retention, "KEPT_VERSIONS", 1)
    store_versions(sqlite)
    tuning_id = enqueue(sqlite, replace(small_request(), simulator="version-1"))
    job_queue.cancel(sqlite, tuning_id)
    assert tuning_control.resume(sqlite, tuning_id) == "queued"
    job_queue.cancel(sqlite, tuning_id)
    with sqlite.writing() as session:
        prune_versions(session)
    with pytest.raises(NotFound, match="no trained simulator 'version-1'"):
        tuning_control.resume(sqlite, tuning_id)
    with sqlite.reading() as session:
        assert session.get_one(TuningRow, tuning_id).state == "cancelled"


def test_old_versions_go_but_the_newest(sqlite: Database) -> None:
    store_versions(sqlite)
    with sqlite.writing() as session:
        session.execute(update(SimulatorVersionRow).values(created_at=1e9))
        session.execute(update(SimulatorPromotionRow).values(number=0))
    prune(sqlite, 1)
    with sqlite.reading() as session:
        assert list(session.scalars(select(SimulatorVersionRow.number))) == [3]


def test_old_trainings_go_but_those_whose_version_is_kept(database: Database) -> None:
    store_versions(database)
    with database.writing() as session:
        gone = job_queue.enqueue_training(session)
        ended = update(SimulatorTrainingRow).values(state="finished", finished_at=1e9)
        session.execute(ended)
        waiting = job_queue.enqueue_training(session)
    prune(database, 1)
    with database.reading() as session:
        left = set(session.scalars(select(SimulatorTrainingRow.id)))
        of_versions = set(session.scalars(select(SimulatorVersionRow.training_id)))
    assert len(of_versions) == 3
    assert left == {waiting, *of_versions}
    assert gone not in left


def test_what_refers_to_removed_rows_is_found_by_an_index() -> None:
    """Else each row that is removed costs a look through a whole table, and SQLite is locked."""
    removed = {table.__tablename__ for table in (JobRow, DomainRow, ProposalRow, StrategyRow)}
    for table in Base.metadata.sorted_tables:
        indexed = [tuple(index.columns.keys()) for index in table.indexes]
        indexed += [
            tuple(each.columns.keys())
            for each in table.constraints
            if isinstance(each, PrimaryKeyConstraint | UniqueConstraint)
        ]
        for key in table.foreign_key_constraints:
            if key.referred_table.name in removed:
                columns = tuple(key.column_keys)
                assert columns in {names[: len(columns)] for names in indexed}, (table, columns)


def test_a_worker_prunes_where_it_is_told_to(
    sqlite_url: str, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    stop = threading.Event()

    def noted(database: Database, keep_days: float, stopped: object) -> int:
        asked.append(keep_days)
        if len(asked) == 2:
            stop.set()
        raise OperationalError("", {}, ValueError("the database is away"))

    monkeypatch.setattr(queue_worker, "prune", noted)
    monkeypatch.setattr(queue_worker, "POLL_SECONDS", 0.01)
    work(sqlite_url, stop, trains=False, keep_days=7)
    assert asked == [7, 7]
    work(sqlite_url, threading.Event(), once=True, trains=False)


class VersionsRemoved(threading.Thread):
    """Version 3 is promoted, and what is then no longer kept is removed."""

    def __init__(self, database: Database):
        super().__init__()
        self.database = database

    def run(self) -> None:
        with self.database.writing() as session:
            session.add(SimulatorPromotionRow(number=3))
            session.flush()
            prune_versions(session)

    def begin(self) -> None:
        """It waits for the transaction that calls this, or is at its end too early."""
        self.start()
        self.join(0.5)


@pytest.fixture
def removing(database: Database, monkeypatch: pytest.MonkeyPatch) -> VersionsRemoved:
    """Of three versions, of which the second is in use."""
    monkeypatch.setattr(retention, "KEPT_VERSIONS", 1)
    store_versions(database)
    with database.writing() as session:
        session.add(SimulatorPromotionRow(number=2))
    return VersionsRemoved(database)


def kept_versions(database: Database) -> set[int]:
    with database.reading() as session:
        return set(session.scalars(select(SimulatorVersionRow.number)))


@pytest.mark.parametrize(("asked", "number"), [("version-1", 1), ("learned", 2)])
def test_a_version_that_is_asked_for_while_versions_are_removed_is_kept(
    database: Database,
    removing: VersionsRemoved,
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    number: int,
) -> None:
    inserted = job_queue.insert

    def insert(session: Session, **values: object) -> None:
        removing.begin()
        inserted(session, **values)

    monkeypatch.setattr(job_queue, "insert", insert)
    enqueue(database, replace(small_request(), simulator=asked))
    removing.join()
    assert kept_versions(database) == {number, 3}


def test_the_version_of_a_tuning_that_is_resumed_while_versions_are_removed_is_kept(
    database: Database, removing: VersionsRemoved, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning_id = enqueue(database, replace(small_request(), simulator="learned"))
    job_queue.cancel(database, tuning_id)
    looked = lock_usable_version

    def look(session: Session, number: int) -> int:
        found = looked(session, number)
        removing.begin()
        return found

    monkeypatch.setattr(tuning_control, "lock_usable_version", look)
    assert tuning_control.resume(database, tuning_id) == "queued"
    removing.join()
    assert kept_versions(database) == {2, 3}
