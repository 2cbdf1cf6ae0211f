"""Which workers live: each says so under a lease, as it does for the tuning that it works on."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from autosync.api.db.database import Database, now_seconds
from autosync.api.db.document_store import insert_new
from autosync.api.db.tables import WorkerRow
from autosync.api.engine.leases import AWAY
from autosync.api.engine.tuning_request import TuningRequest
from autosync.errors import AutosyncError, NotSupported
from autosync.trials.request_names import REAL_CLUSTERS

if TYPE_CHECKING:
    from autosync.api.engine.work_queue import WorkQueue

log = logging.getLogger(__name__)


@contextmanager
def registered(queue: "WorkQueue", name: str, lease_seconds: float) -> Iterator[None]:
    """The worker `name` is among those that live while the block runs."""
    done = threading.Event()
    thread = threading.Thread(
        target=_renew, args=(queue, name, lease_seconds, done), name="registry", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def register(database: Database, name: str, lease_seconds: float, gpus: int) -> None:
    """Say that the worker lives for as long as the lease; forget those whose lease has ended."""
    now = now_seconds()
    with database.writing() as session:
        session.execute(delete(WorkerRow).where(WorkerRow.lives_until < now))
        values = {"gpus": gpus, "lives_until": now + lease_seconds}
        if not insert_new(session, WorkerRow, name=name, started_at=now, **values):
            session.execute(update(WorkerRow).where(WorkerRow.name == name).values(**values))


def unregister(database: Database, name: str) -> None:
    with database.writing() as session:
        session.execute(delete(WorkerRow).where(WorkerRow.name == name))


def gpus_of_workers(session: Session) -> list[int]:
    """The number of GPUs of each worker that lives."""
    living = select(WorkerRow.gpus).where(WorkerRow.lives_until >= now_seconds())
    return list(session.scalars(living))


def refuse_without_gpus(session: Session, request: TuningRequest) -> None:
    """
    Raises:
        NotSupported: trials are to compute on GPUs of a worker, and none of those that live has
            one. Where no worker lives yet, nobody knows.
    """
    gpus = gpus_of_workers(session)
    if (
        request.device == "cuda"
        and request.launcher not in REAL_CLUSTERS
        and gpus
        and not any(gpus)
    ):
        raise NotSupported(
            f"compute device cuda: none of the {len(gpus)} workers of this service has a GPU.",
            thing="compute_device",
            value="cuda",
            remedy="Start a worker on a machine with GPUs, or compute on the cpu.",
        )


def visible_gpus() -> int:
    """NVIDIA GPUs of this machine, by their device files: to ask torch would load it."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _renew(queue: "WorkQueue", name: str, lease_seconds: float, done: threading.Event) -> None:
    gpus = visible_gpus()
    while True:
        try:
            queue.register(name, lease_seconds, gpus)
            if done.wait(lease_seconds / 3):
                return queue.unregister(name)
        except (AutosyncError, *AWAY) as error:  # it may come back, or let this worker in again
            log.warning("worker %s not registered: %s", name, error)
            if done.wait(lease_seconds / 3):
                return
