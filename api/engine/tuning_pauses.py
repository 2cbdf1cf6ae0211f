"""Pausing a tuning and letting it go on: a worker that has it stops after the trial that runs."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.clock import now_seconds
from autosync.api.db.database import Database
from autosync.api.db.lookup import stored
from autosync.api.db.tables import ACTIVE, FINAL, TuningRow
from autosync.api.engine import tuning_queue
from autosync.api.engine.database_store import add_event
from autosync.errors import NotSupported
from autosync.search.loop.outcome import TuningEvent


def pause(database: Database, tuning_id: str) -> str:
    """Its new state: `paused` at once where no worker has it, else `pausing` until the trial that
    runs has ended. It goes on when it is resumed.

    Raises:
        NotFound: no such tuning. NotSupported: it has ended, or is being cancelled.
    """
    with database.writing() as session:
        tuning = _locked(session, tuning_id)
        if tuning.state in (*FINAL, "cancelling"):
            raise _impossible(tuning, "paused", "Only a tuning that waits or runs can be paused.")
        now = session.scalars(select(now_seconds())).one()
        held = tuning.state in ACTIVE and (tuning.lease_until or now) >= now
        if not held and tuning.state != "paused":
            tuning.state, tuning.lease_until, tuning.worker = "paused", None, None
            add_event(session, tuning_id, TuningEvent("waiting", "paused"))
        elif tuning.state == "running":
            tuning.state = "pausing"
            add_event(session, tuning_id, TuningEvent("waiting", "pauses after this trial"))
        return str(tuning.state)


def resume(database: Database, tuning_id: str) -> str:
    """Its new state. It goes on with what it measured, whether it was paused, failed or was
    cancelled; one that waits or runs is left as it is.

    Raises:
        NotFound: no such tuning. NotSupported: it has finished, or is being cancelled.
    """
    with database.writing() as session:
        tuning = _locked(session, tuning_id)
        if tuning.state in ("finished", "cancelling"):
            raise _impossible(tuning, "resumed", "Start another one.")
        if tuning.state not in ("queued", "running"):
            add_event(session, tuning_id, TuningEvent("waiting", "goes on"))
    tuning_queue.reopen(database, tuning_id)
    with database.reading() as session:
        return session.get_one(TuningRow, tuning_id).state


def _locked(session: Session, tuning_id: str) -> TuningRow:
    """Nobody else changes it until the end of the transaction. Raises NotFound."""
    tuning = stored(session, TuningRow, tuning_id, "tuning")
    session.refresh(tuning, with_for_update=True)
    return tuning


def _impossible(tuning: TuningRow, done: str, remedy: str) -> NotSupported:
    return NotSupported(
        f"tuning {tuning.id} is {tuning.state} and cannot be {done}.",
        thing="tuning",
        value=tuning.state,
        remedy=remedy,
    )
