"""The queue of jobs, tunings and trainings of simulators: rows that workers claim under leases.

A claim counts the job's fence up; whoever holds an older number can write nothing (see
`database_store`). A worker that dies stops renewing its lease, and after it anyone may go on.
"""

import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import and_, case, exists, func, or_, select, true, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session, aliased
from sqlalchemy.sql.elements import ColumnElement

from autosync.api.db.database import Database, now_seconds
from autosync.api.db.document_store import insert_new
from autosync.api.db.lookup import stored
from autosync.api.db.tables import (
    ACTIVE,
    WAITING,
    ClientRow,
    JobRow,
    OutcomeRow,
    SimulatorTrainingRow,
    TuningRow,
)
from autosync.api.engine.database_store import LeaseLost, clean
from autosync.api.engine.leases import LEASE_SECONDS, EndReason
from autosync.errors import NotSupported
from autosync.trials.request_names import REAL_CLUSTERS

CLAIMING_KEY = 0x636C61696D
"""Of PostgreSQL's advisory lock: one worker at a time sees which hosts are taken. "claim"."""
log = logging.getLogger(__name__)


JobKind = Literal["tuning", "training"]


@dataclass(frozen=True, slots=True)
class Claim:
    job_id: str
    fence: int
    kind: JobKind = "tuning"


@dataclass(frozen=True, slots=True)
class Abilities:
    """What tunings a worker can run. launchers: that are set up there, or that it is to use. gpus:
    of its machine."""

    launchers: tuple[str, ...]
    gpus: int


def claim(
    database: Database,
    worker: str,
    lease_seconds: float = LEASE_SECONDS,
    tuning_id: str | None = None,
    kind: JobKind = "tuning",
    can: Abilities | None = None,
) -> Claim | None:
    """Take a job of that kind that waits or whose worker is gone, or the tuning named if it does;
    None when there is none. can: only a tuning that such a worker can run; None: any.

    Of those that run on the same real hosts one is worked on at a time: else each would measure the
    other, too. It is the oldest of the client that has waited longest since a worker last took one
    of theirs, so that a client with many tunings keeps nobody else waiting for all of them.
    """
    now = now_seconds()
    expired = and_(JobRow.state.in_(ACTIVE), JobRow.lease_until < now)
    named = JobRow.id == tuning_id if tuning_id is not None else true()
    ending = JobRow.state == "cancelling"  # any worker can end it
    served_at = func.coalesce(ClientRow.served_at, 0.0)
    next_due = (
        select(JobRow.id)
        .outerjoin(ClientRow, ClientRow.name == JobRow.client)
        .where(JobRow.kind == kind, or_(JobRow.state == "queued", expired), named)
        .where(_hosts_are_free(), true() if can is None else or_(ending, _runs(can)))
        .order_by(served_at, JobRow.created_at, JobRow.id)
        .limit(1)
        .with_for_update(skip_locked=True, of=JobRow)
    )
    statement = (
        update(JobRow)
        .where(JobRow.id == next_due.scalar_subquery())
        .values(
            state=case((JobRow.state == "queued", "running"), else_=JobRow.state),
            fence=JobRow.fence + 1,
            worker=worker,
            lease_until=now + lease_seconds,
            started_at=case((JobRow.started_at.is_(None), now), else_=JobRow.started_at),
        )
        .returning(JobRow.id, JobRow.fence, JobRow.client)
        .execution_options(synchronize_session=False)
    )
    with database.writing() as session:
        if database.dialect == "postgresql":
            session.execute(select(func.pg_advisory_xact_lock(CLAIMING_KEY)))
        row = session.execute(statement).first()
        if row is not None and kind == "tuning":
            _note_served(session, row.client)
    return Claim(row.id, row.fence, kind) if row else None


def _hosts_are_free() -> ColumnElement[bool]:
    """Of a job: it runs on the worker's machine, or nobody works on another one of its hosts."""
    other = aliased(JobRow)
    busy = exists().where(
        other.hosts == JobRow.hosts,
        other.id != JobRow.id,
        other.state.in_(ACTIVE),
        other.lease_until >= now_seconds(),
    )
    return or_(JobRow.hosts == "", ~busy)


def _runs(can: Abilities) -> ColumnElement[bool]:
    columns = JobRow.__table__.c
    here = columns.launcher.in_(can.launchers)
    if can.gpus:
        return here
    elsewhere = columns.launcher.in_(REAL_CLUSTERS)
    return and_(here, or_(columns.compute_device != "cuda", elsewhere))


def _note_served(session: Session, client: str) -> None:
    if not insert_new(session, ClientRow, name=client, served_at=now_seconds()):
        session.execute(
            update(ClientRow)
            .where(ClientRow.name == client)
            .values(served_at=now_seconds())
            .execution_options(synchronize_session=False)
        )


def heartbeat(database: Database, held: Claim, lease_seconds: float = LEASE_SECONDS) -> bool:
    """Renew the lease; False when the claim is no longer the job's, or had run out before another
    job of the same hosts was begun: both would measure each other."""
    until = now_seconds() + lease_seconds
    with database.writing() as session:
        # from one renewal to the next the lease moves on by just the time that has passed
        passed = until - func.coalesce(JobRow.lease_until, until)
        renewed = {"lease_until": until, "held_seconds": JobRow.held_seconds + passed}
        return _write(session, held, _hosts_are_free(), **renewed)


def finish(database: Database, held: Claim, outcome: OutcomeRow) -> None:
    """Store the answer of a tuning and end it, in one transaction. Raises LeaseLost."""
    with database.writing() as session:
        end(session, held, "finished", best_seconds=outcome.best_seconds)
        session.add(outcome)
        session.flush()
        enqueue_training(session, held.job_id)


def fail(database: Database, held: Claim, error: str) -> None:
    """Raises LeaseLost."""
    with database.writing() as session:
        end(session, held, "failed", error=clean(error))


def end_cancelled(database: Database, held: Claim) -> None:
    """Raises LeaseLost."""
    with database.writing() as session:
        end(session, held, "cancelled")


def report(database: Database, held: Claim, message: str) -> None:
    """Say how far the job is. Raises LeaseLost."""
    with database.writing() as session:
        if not _write(session, held, message=clean(message)):
            raise _lost(held)


def reason_to_end(database: Database, held: Claim) -> EndReason | None:
    """Why the job is to end: somebody cancelled it, or the claim does not hold; None while it
    may go on."""
    query = select(JobRow.state, JobRow.fence).where(JobRow.id == held.job_id)
    with database.reading() as session:
        row = session.execute(query).first()
    if row is None or row.fence != held.fence or row.state not in ACTIVE:
        return "lost"
    return "cancelled" if row.state == "cancelling" else None


def give_up(database: Database, held: Claim, reason: EndReason) -> None:
    """End the work of a claim before its answer; what was measured stays. May be called twice."""
    match reason:
        case "cancelled":
            with suppress(LeaseLost):
                end_cancelled(database, held)
        case "interrupted" | "paused":
            release(database, held)
    log.info("%s %s: ends here (%s)", held.kind, held.job_id, reason)


def release(database: Database, held: Claim) -> None:
    """Give the job back to the queue, or leave it paused where somebody asked for that; what it
    has measured stays."""
    cancelled = JobRow.state == "cancelling"
    state = case(
        (cancelled, "cancelled"),
        (JobRow.state == "pausing", "paused"),
        else_="queued",
    )
    finished_at = case((cancelled, now_seconds()), else_=JobRow.finished_at)
    with database.writing() as session:
        _write(session, held, state=state, finished_at=finished_at, lease_until=None, worker=None)


def cancel(database: Database, tuning_id: str) -> str:
    """Ask a tuning to stop; its new state: `cancelled` at once when no worker has it.

    Raises:
        NotFound: no such tuning. NotSupported: it has ended already.
    """
    with database.writing() as session:
        tuning = stored(session, TuningRow, tuning_id, "tuning")
        session.refresh(tuning, with_for_update=True)
        if tuning.state in ("finished", "failed"):
            raise NotSupported(
                f"tuning {tuning_id} has {tuning.state} already and cannot be cancelled.",
                thing="tuning",
                value=tuning.state,
                remedy="Start another one.",
            )
        now = session.scalars(select(now_seconds())).one()
        if is_held(tuning, now):
            tuning.state = "cancelling"
        elif tuning.state != "cancelled":
            tuning.state, tuning.finished_at = "cancelled", now
        return str(tuning.state)


def is_held(tuning: TuningRow, now: float) -> bool:
    """Whether a worker has it whose lease has not ended."""
    return tuning.state in ACTIVE and (tuning.lease_until or 0.0) >= now


def end_abandoned(database: Database) -> None:
    """End the tunings that were cancelled and whose workers are gone: there may be no other worker
    to end them. Looks first: on SQLite who writes waits for other writers."""
    abandoned = and_(JobRow.state == "cancelling", JobRow.lease_until < now_seconds())
    with database.reading() as session:
        if session.scalars(select(JobRow.id).where(abandoned).limit(1)).first() is None:
            return
    with database.writing() as session:
        session.execute(
            update(JobRow)
            .where(abandoned)
            .values(state="cancelled", lease_until=None, finished_at=now_seconds())
            .execution_options(synchronize_session=False)
        )


def expire(database: Database, held: Claim) -> None:
    """End the lease of a claim whose worker is known to be dead: anyone may go on at once."""
    with database.writing() as session:
        _write(session, held, lease_until=now_seconds() - 1.0)


def places(session: Session) -> dict[str, int]:
    """The place of each tuning that waits, counted from 1, in the order in which workers take them;
    of the first thousand."""
    turn = func.row_number().over(
        partition_by=TuningRow.client, order_by=(TuningRow.created_at, TuningRow.id)
    )
    served_at = func.coalesce(ClientRow.served_at, 0.0)
    query = (
        select(TuningRow.id)
        .outerjoin(ClientRow, ClientRow.name == TuningRow.client)
        .where(TuningRow.state == "queued")
        .order_by(turn, served_at, TuningRow.created_at, TuningRow.id)
    )
    waiting = session.scalars(query.limit(1000))
    return {tuning_id: place for place, tuning_id in enumerate(waiting, 1)}


def insert(session: Session, **values: object) -> None:
    """A tuning that waits for a worker; `values` are columns of TuningRow."""
    session.add(TuningRow(**values))
    session.flush()


def enqueue_training(session: Session, tuning_id: str | None = None, seed: int = 0) -> str:
    """Its id; that of the training which waits already, if one does: it will see all trials."""
    waiting = select(SimulatorTrainingRow.id).where(SimulatorTrainingRow.state == "queued")
    if (known := session.scalars(waiting).first()) is not None:
        return known
    training_id = uuid.uuid4().hex
    session.add(SimulatorTrainingRow(id=training_id, tuning_id=tuning_id, seed=seed))
    session.flush()
    return training_id


def lock_client(session: Session, client: str) -> None:
    """Until the end of the transaction no other one puts tunings of the client into the queue."""
    insert_new(session, ClientRow, name=client)
    session.execute(select(ClientRow.name).where(ClientRow.name == client).with_for_update())


def waiting_of(session: Session, client: str) -> int:
    """How many tunings of the client wait for a worker, or are paused before one takes them."""
    waiting = select(func.count()).select_from(TuningRow)
    of_client = (TuningRow.state.in_(WAITING), TuningRow.client == client)
    return session.scalars(waiting.where(*of_client)).one()


def end(session: Session, held: Claim, state: str, **values: object) -> None:
    """Raises LeaseLost."""
    ended = {"state": state, "lease_until": None, "finished_at": now_seconds()}
    if not _write(session, held, **ended, **values):
        raise _lost(held)


def _write(
    session: Session, held: Claim, *conditions: ColumnElement[bool], **values: object
) -> bool:
    """Write columns of the claimed job, if the claim still holds and the conditions do."""
    table = TuningRow if held.kind == "tuning" else SimulatorTrainingRow
    statement = (
        update(table)
        .where(table.id == held.job_id, table.fence == held.fence, table.state.in_(ACTIVE))
        .where(*conditions)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    result = session.execute(statement)
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


def _lost(held: Claim) -> LeaseLost:
    return LeaseLost(
        f"{held.kind} {held.job_id} was taken over after claim {held.fence}.",
        thing=held.kind,
        value=held.job_id,
        remedy="Another worker goes on with it.",
    )


def keeps_dying(held: Claim) -> NotSupported:
    """Why a job that was claimed too often is given up."""
    return NotSupported(
        f"the {held.kind} was claimed {held.fence} times and never came to its end.",
        thing=held.kind,
        value=held.job_id,
        remedy="Its worker died or was stopped each time: look at its log and at free memory.",
    )
