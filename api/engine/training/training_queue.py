"""The queue of simulator trainings: claimed under leases and fences, as tunings are."""

import ctypes
import logging
import os
import signal
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from sqlalchemy import and_, case, or_, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from autosync.api.db.database import Database, now_seconds
from autosync.api.db.document_store import insert_new
from autosync.api.db.tables import SimulatorTrainingRow
from autosync.api.engine.database_store import LeaseLost, clean
from autosync.api.engine.leases import LEASE_SECONDS
from autosync.cancellation import check_cancelled
from autosync.errors import AutosyncError
from autosync.trials.pool.machine_lock import MachineLock

Say = Callable[[str], None]
Answer = TypeVar("Answer")

POLL_SECONDS = 0.05
"""Between two looks whether anything is measured: less than what a trial warms up for."""
LEAST_PRIORITY = 19
PR_SET_PDEATHSIG = 1
log = logging.getLogger(__name__)


def run_beside_trials(work: Callable[[Say], Answer], say: Say, lock: MachineLock) -> Answer:
    """What `work` returns, from a process that this one feeds with `work` by pickling. It holds no
    lock and no connection of this one, so that it may stand still anywhere.

    say: is told what `work` says. lock: of those who measure.

    Raises:
        Cancelled: then nothing of it goes on. AutosyncError: of `work`.
        RuntimeError: it failed otherwise, or its process was killed.
    """
    context = get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(
        target=_run, args=(work, sending, os.getpid()), name="training", daemon=True
    )
    process.start()
    sending.close()  # its end is then seen here
    stopped = False
    try:
        while True:
            check_cancelled()
            if stopped != lock.is_held():
                stopped = not stopped
                _signal(process, signal.SIGSTOP if stopped else signal.SIGCONT)
            if not receiving.poll(POLL_SECONDS):
                continue
            kind, content = _received(receiving, process)
            if kind == "said":
                say(content)
            elif kind == "answer":
                answer: Answer = content
                return answer
            else:
                raise content
    finally:
        process.kill()
        process.join()
        receiving.close()


def _received(receiving: Connection, process: BaseProcess) -> tuple[str, Any]:
    try:
        kind, content = receiving.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"the training's process ended with status {process.exitcode}, without an answer"
        ) from None
    return kind, content


def _signal(process: BaseProcess, number: signal.Signals) -> None:
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, number)


def _run(work: Callable[[Say], object], sending: Connection, parent: int) -> None:
    """In the process. Who is killed takes it along, stopped or not."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: this one's parent ends it
    os.nice(LEAST_PRIORITY)
    try:
        sending.send(("answer", work(lambda text: sending.send(("said", text)))))
    except AutosyncError as error:
        sending.send(("error", error))
    except Exception as error:  # a process' boundary: its parent raises it
        log.debug("the training failed", exc_info=True)
        sending.send(("error", RuntimeError("".join(traceback.format_exception(error)))))


MOST_CLAIMS = 3
"""A training that was begun this often and never ended is given up: the next one has its trials."""


@dataclass(frozen=True, slots=True)
class TrainingClaim:
    training_id: str
    fence: int
    seed: int


def enqueue_training(session: Session, tuning_id: str | None = None, seed: int = 0) -> str:
    """Its id; that of the training which waits already, if one does: it will see all trials."""
    waiting = select(SimulatorTrainingRow.id).where(SimulatorTrainingRow.state == "queued")
    if (known := session.scalars(waiting).first()) is not None:
        return known
    training_id = uuid.uuid4().hex
    insert_new(session, SimulatorTrainingRow, id=training_id, tuning_id=tuning_id, seed=seed)
    return training_id


def claim_training(
    database: Database, worker: str, lease_seconds: float = LEASE_SECONDS
) -> TrainingClaim | None:
    """Take the oldest training that waits or whose worker is gone; None when there is none."""
    row = SimulatorTrainingRow
    now = now_seconds()
    expired = and_(row.state == "running", row.lease_until < now)
    oldest = (
        select(row.id)
        .where(or_(row.state == "queued", expired))
        .order_by(row.created_at, row.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    statement = (
        update(row)
        .where(row.id == oldest.scalar_subquery())
        .values(
            state="running",
            fence=row.fence + 1,
            worker=worker,
            lease_until=now + lease_seconds,
            started_at=case((row.started_at.is_(None), now), else_=row.started_at),
        )
        .returning(row.id, row.fence, row.seed)
        .execution_options(synchronize_session=False)
    )
    with database.writing() as session:
        found = session.execute(statement).first()
    return TrainingClaim(found.id, found.fence, found.seed) if found else None


def renew_training(database: Database, held: TrainingClaim, lease_seconds: float) -> bool:
    """Renew the lease; False when the claim no longer holds."""
    with database.writing() as session:
        return write_training(session, held, lease_until=now_seconds() + lease_seconds)


def report_training(database: Database, held: TrainingClaim, message: str) -> None:
    """Say how far it is. Raises LeaseLost."""
    with database.writing() as session:
        check_written(held, write_training(session, held, message=clean(message)))


def fail_training(database: Database, held: TrainingClaim, error: str) -> None:
    """Raises LeaseLost."""
    with database.writing() as session:
        check_written(held, end_training(session, held, "failed", error=clean(error)))


def release_training(database: Database, held: TrainingClaim) -> None:
    """Give it back to the queue: the next worker begins anew."""
    with database.writing() as session:
        write_training(session, held, state="queued", lease_until=None, worker=None)


def end_training(session: Session, held: TrainingClaim, state: str, **values: object) -> bool:
    ended = {"lease_until": None, "finished_at": now_seconds()}
    return write_training(session, held, state=state, **ended, **values)


def write_training(session: Session, held: TrainingClaim, **values: object) -> bool:
    """Write columns of the claimed training, if the claim still holds."""
    row = SimulatorTrainingRow
    statement = (
        update(row)
        .where(row.id == held.training_id, row.fence == held.fence, row.state == "running")
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    result = session.execute(statement)
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


def check_written(held: TrainingClaim, written: bool) -> None:
    """Raises LeaseLost where it was not."""
    if not written:
        raise LeaseLost(
            f"training {held.training_id} was taken over after claim {held.fence}.",
            thing="training",
            value=held.training_id,
            remedy="Another worker goes on with it.",
        )
