"""Removes what an operator no longer keeps: old tunings, events and trainings, and all but the
newest versions of the simulator. In many transactions, so that nobody waits for long.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, delete, exists, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from autosync.api.db.database import Database, now_seconds
from autosync.api.db.tables import (
    FINAL,
    Base,
    DomainRow,
    EventRow,
    JobRow,
    OutcomeRow,
    ProposalRow,
    SimulatorRow,
    SimulatorTrainingRow,
    SimulatorVersionRow,
    StrategyRow,
    StrategySummaryRow,
    TrialRow,
    TuningRow,
)
from autosync.api.engine.simulator_store import version_in_use
from autosync.api.engine.tuning_control import GOES_ON

DAY_SECONDS = 86_400.0
ROWS = 500
"""That a transaction removes, at most, but for one that removes a tuning whole."""
KEPT_VERSIONS = 10
"""The newest; beside them the one in use, and those of tunings that are not at their end."""
log = logging.getLogger(__name__)


def prune(database: Database, keep_days: float, stop: Callable[[], bool] = lambda: False) -> int:
    """Remove tunings and trainings that ended more than so many days ago, with all that only they
    refer to, older events, and older versions that nobody uses; how many tunings. Models and
    clusters stay. stop: asked between two transactions.

    Raises:
        OperationalError: the database is away.
    """
    with database.reading() as session:
        before = session.scalars(select(now_seconds())).one() - keep_days * DAY_SECONDS
        ended = (JobRow.state.in_(FINAL), JobRow.finished_at < before)
        query = select(TuningRow.id).where(*ended).order_by(TuningRow.finished_at)
        tuning_ids = session.scalars(query).all()
    removed = 0
    for tuning_id in tuning_ids:
        if stop():
            return removed
        removed += _tuning_removed(database, tuning_id, before)
    for step in (_old_events, _old_versions, _old_trainings, *_unused_documents()):
        while not stop() and _in_one_transaction(database, step, before):
            pass
    if removed:
        log.info("removed %d tunings that ended more than %g days ago", removed, keep_days)
    return removed


def prune_versions(session: Session) -> None:
    """All but the newest that are kept; see KEPT_VERSIONS."""
    numbers = session.scalars(
        select(SimulatorVersionRow.number).order_by(SimulatorVersionRow.number.desc())
    ).all()
    _remove_versions(session, numbers[KEPT_VERSIONS:])


def _tuning_removed(database: Database, tuning_id: str, before: float) -> bool:
    """Removes a tuning with all that is its own, in one transaction: of one that is shown or tried
    again nothing is missing. Whether it is gone; one that somebody tries again meanwhile stays."""
    old = select(TuningRow.id).where(
        TuningRow.id == tuning_id, TuningRow.state.in_(FINAL), TuningRow.finished_at < before
    )
    unsynchronized = {"synchronize_session": False}
    with database.writing() as session:
        if session.scalars(old.with_for_update()).first() is None:
            return False
        for table in (EventRow, StrategySummaryRow, TrialRow, OutcomeRow, ProposalRow):
            own = delete(table).where(table.tuning_id == tuning_id)
            session.execute(own, execution_options=unsynchronized)
        trainings = update(SimulatorTrainingRow).where(SimulatorTrainingRow.tuning_id == tuning_id)
        session.execute(trainings.values(tuning_id=None), execution_options=unsynchronized)
        row = delete(JobRow).where(JobRow.id == tuning_id)
        session.execute(row, execution_options=unsynchronized)
    return True


def _in_one_transaction(
    database: Database, step: Callable[[Session, float], int], before: float
) -> bool:
    """Whether the step may have more to remove."""
    try:
        with database.writing() as session:
            return step(session, before) >= ROWS
    except IntegrityError:  # somebody has begun to use a row meanwhile: it stays
        return False


def _old_events(session: Session, before: float) -> int:
    """Of tunings that are kept: their numbers grow with time. `refuse_hopeless` counts the times
    that a tuning was resumed, so those stay."""
    others = select(EventRow.id, EventRow.created_at).where(EventRow.message != GOES_ON)
    first = others.order_by(EventRow.id).limit(ROWS)
    old = [number for number, created_at in session.execute(first) if created_at < before]
    return _delete(session, EventRow, EventRow.id.in_(old)) if old else 0


def _old_versions(session: Session, before: float) -> int:
    query = select(SimulatorVersionRow.number).where(SimulatorVersionRow.created_at < before)
    numbers = session.scalars(query.order_by(SimulatorVersionRow.number)).all()
    newest = session.scalar(
        select(SimulatorVersionRow.number).order_by(SimulatorVersionRow.number.desc()).limit(1)
    )
    _remove_versions(session, [each for each in numbers if each != newest])
    return 0


def _old_trainings(session: Session, before: float) -> int:
    made = exists().where(SimulatorVersionRow.training_id == SimulatorTrainingRow.id)
    old = (SimulatorTrainingRow.state.in_(FINAL), SimulatorTrainingRow.finished_at < before)
    return _delete(session, SimulatorTrainingRow, *old, ~made)


def _remove_versions(session: Session, numbers: Sequence[int]) -> None:
    """But for the one in use and those of tunings that are not at their end."""
    named = select(SimulatorVersionRow.simulator).where(SimulatorVersionRow.number.in_(numbers))
    locked = select(SimulatorRow.name).where(SimulatorRow.name.in_(named))
    # whoever asks for one of them meanwhile has it before this looks who does, or not at all
    session.execute(locked.order_by(SimulatorRow.name).with_for_update())
    unended = TuningRow.state.not_in(FINAL)
    by_number = select(TuningRow.simulator_version).where(unended)
    asked_for = select(TuningRow.simulator).where(unended)
    by_name = select(SimulatorVersionRow.number).where(SimulatorVersionRow.simulator.in_(asked_for))
    used = {version_in_use(session), *session.scalars(by_number), *session.scalars(by_name)}
    gone = [each for each in numbers if each not in used]
    if not gone:
        return
    named = select(SimulatorVersionRow.simulator).where(SimulatorVersionRow.number.in_(gone))
    names = session.scalars(named).all()
    session.execute(delete(SimulatorVersionRow).where(SimulatorVersionRow.number.in_(gone)))
    session.execute(delete(SimulatorRow).where(SimulatorRow.name.in_(names)))


def _unused_documents() -> Iterator[Callable[[Session, float], int]]:
    """Strategies and domains that nothing refers to any longer."""
    users: dict[type[Base], tuple[Any, ...]] = {
        StrategyRow: tuple(
            table.strategy_hash for table in (ProposalRow, OutcomeRow, StrategySummaryRow)
        ),
        DomainRow: (TuningRow.domain_id, TrialRow.domain_id),
    }

    for table, columns in users.items():
        key = next(iter(table.__table__.primary_key))

        def unused(
            session: Session,
            before: float,
            table: type[Base] = table,
            key: Any = key,
            columns: tuple[Any, ...] = columns,
        ) -> int:
            free = [~exists().where(column == key) for column in columns]
            return _delete(session, table, table.created_at < before, *free)  # type: ignore[attr-defined]

        yield unused


def _delete(session: Session, table: type[Base], *conditions: ColumnElement[bool]) -> int:
    """Up to ROWS rows; how many."""
    keys = tuple(table.__table__.primary_key)
    chosen = select(*keys).where(*conditions).limit(ROWS)
    rows = session.execute(chosen).all()
    if rows:
        session.execute(
            delete(table)
            .where(tuple_(*keys).in_([tuple(row) for row in rows]))
            .execution_options(synchronize_session=False)
        )
    return len(rows)
