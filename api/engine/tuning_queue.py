"""The queue of tunings: rows that workers claim under leases.

A claim counts the tuning's fence up; whoever holds an older number can write nothing (see
`database_store`). A worker that dies stops renewing its lease, and after it anyone may go on.
"""

from dataclasses import dataclass

from sqlalchemy import and_, case, or_, select, true, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from autosync.api.db.clock import now_seconds
from autosync.api.db.database import Database
from autosync.api.db.document_store import insert_new
from autosync.api.db.lookup import stored
from autosync.api.db.tables import ACTIVE, FINAL, OutcomeRow, TuningRow
from autosync.api.engine.database_store import LeaseLost, clean
from autosync.api.engine.leases import LEASE_SECONDS
from autosync.api.engine.training_queue import enqueue_training
from autosync.errors import NotSupported


@dataclass(frozen=True, slots=True)
class Claim:
    tuning_id: str
    fence: int


def claim(
    database: Database,
    worker: str,
    lease_seconds: float = LEASE_SECONDS,
    tuning_id: str | None = None,
) -> Claim | None:
    """Take the oldest tuning that waits or whose worker is gone, or the one named if it does;
    None when there is none."""
    now = now_seconds()
    expired = and_(TuningRow.state.in_(ACTIVE), TuningRow.lease_until < now)
    named = TuningRow.id == tuning_id if tuning_id is not None else true()
    oldest = (
        select(TuningRow.id)
        .where(or_(TuningRow.state == "queued", expired), named)
        .order_by(TuningRow.created_at, TuningRow.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    statement = (
        update(TuningRow)
        .where(TuningRow.id == oldest.scalar_subquery())
        .values(
            state=case((TuningRow.state == "cancelling", "cancelling"), else_="running"),
            fence=TuningRow.fence + 1,
            worker=worker,
            lease_until=now + lease_seconds,
            started_at=case((TuningRow.started_at.is_(None), now), else_=TuningRow.started_at),
        )
        .returning(TuningRow.id, TuningRow.fence)
        .execution_options(synchronize_session=False)
    )
    with database.writing() as session:
        row = session.execute(statement).first()
    return Claim(row.id, row.fence) if row else None


def heartbeat(database: Database, held: Claim, lease_seconds: float = LEASE_SECONDS) -> bool:
    """Renew the lease; False when the claim is no longer the tuning's."""
    with database.writing() as session:
        return _write(session, held, lease_until=now_seconds() + lease_seconds)


def finish(database: Database, held: Claim, outcome: OutcomeRow) -> None:
    """Store the answer and end the tuning, in one transaction."""
    with database.writing() as session:
        if not _end(session, held, "finished", best_seconds=outcome.best_seconds):
            raise _lost(held)
        session.add(outcome)
        session.flush()
        enqueue_training(session, held.tuning_id)


def fail(database: Database, held: Claim, error: str) -> None:
    with database.writing() as session:
        if not _end(session, held, "failed", error=clean(error)):
            raise _lost(held)


def end_cancelled(database: Database, held: Claim) -> None:
    with database.writing() as session:
        if not _end(session, held, "cancelled", message="cancelled"):
            raise _lost(held)


def release(database: Database, held: Claim) -> None:
    """Give the tuning back to the queue; what it has measured stays."""
    state = case((TuningRow.state == "cancelling", "cancelled"), else_="queued")
    with database.writing() as session:
        _write(session, held, state=state, lease_until=None, worker=None)


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
        if tuning.state == "queued" or (tuning.lease_until or now) < now:
            tuning.state, tuning.finished_at = "cancelled", now
        elif tuning.state == "running":
            tuning.state = "cancelling"
        return str(tuning.state)


def expire(database: Database, held: Claim) -> None:
    """End the lease of a claim whose worker is known to be dead: anyone may go on at once."""
    with database.writing() as session:
        _write(session, held, lease_until=0.0)


def reopen(database: Database, tuning_id: str) -> None:
    """Put a tuning that failed or was cancelled back into the queue; what it measured stays."""
    with database.writing() as session:
        session.execute(
            update(TuningRow)
            .where(TuningRow.id == tuning_id, TuningRow.state.in_(("failed", "cancelled")))
            .values(state="queued", error=None, finished_at=None)
            .execution_options(synchronize_session=False)
        )


def retry(database: Database, tuning_id: str) -> None:
    """As `reopen`, for somebody who asks for it.

    Raises:
        NotFound: no such tuning. NotSupported: it has neither failed nor been cancelled.
    """
    with database.reading() as session:
        state = stored(session, TuningRow, tuning_id, "tuning").state
    if state not in ("failed", "cancelled"):
        raise NotSupported(
            f"tuning {tuning_id} is {state}; only one that failed or was cancelled goes on again.",
            thing="tuning",
            value=state,
            remedy="Start another one.",
        )
    reopen(database, tuning_id)


def places(session: Session) -> dict[str, int]:
    """The place of each tuning that waits, counted from 1, in the order in which workers take them;
    of the first thousand."""
    query = select(TuningRow.id).where(TuningRow.state == "queued")
    waiting = session.scalars(query.order_by(TuningRow.created_at, TuningRow.id).limit(1000))
    return {tuning_id: place for place, tuning_id in enumerate(waiting, 1)}


def insert(session: Session, **values: object) -> None:
    """A tuning that waits for a worker; `values` are columns of TuningRow."""
    insert_new(session, TuningRow, **values)


def _end(session: Session, held: Claim, state: str, **values: object) -> bool:
    return _write(session, held, state=state, lease_until=None, finished_at=now_seconds(), **values)


def _write(session: Session, held: Claim, **values: object) -> bool:
    """Write columns of the claimed tuning, if the claim still holds."""
    statement = (
        update(TuningRow)
        .where(TuningRow.id == held.tuning_id, TuningRow.fence == held.fence)
        .where(TuningRow.state.not_in(("queued", *FINAL)))
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    result = session.execute(statement)
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


def _lost(held: Claim) -> LeaseLost:
    return LeaseLost(
        f"tuning {held.tuning_id} was taken over after claim {held.fence}.",
        thing="tuning",
        value=held.tuning_id,
        remedy="Another worker goes on with it.",
    )
