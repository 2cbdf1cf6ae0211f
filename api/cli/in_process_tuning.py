"""Run a tuning of the database in this process and show how it goes."""

import os
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autosync.api.cli.progress import ProgressEvent, TuningProgressBar, tuning_bar

if TYPE_CHECKING:
    from autosync.api.db.database import Database
    from autosync.api.db.tables import TuningRow
    from autosync.api.engine.tuning_queue import Claim

POLL_SECONDS = 0.2
GIVEN_BACK_SECONDS = 1.5
"""After which a tuning that was stopped is given back, even if compiled code still runs."""


@dataclass
class EventReader:
    """The events of a tuning in the database, each of them once."""

    database: "Database"
    tuning_id: str
    seen: int = 0

    def unseen(self) -> list[ProgressEvent]:
        """Those since the last call."""
        from sqlalchemy import select

        from autosync.api.db.tables import EventRow

        query = (
            select(EventRow)
            .where(EventRow.tuning_id == self.tuning_id, EventRow.id > self.seen)
            .order_by(EventRow.id)
        )
        with self.database.reading() as session:
            rows = session.scalars(query).all()
        self.seen = rows[-1].id if rows else self.seen
        return [
            ProgressEvent(r.kind, r.message, r.done, r.total, r.best_seconds, r.created_at)
            for r in rows
        ]

    def tuning(self) -> "TuningRow":
        from autosync.api.db.tables import TuningRow

        with self.database.reading() as session:
            return session.get_one(TuningRow, self.tuning_id)


def run_here(
    database: "Database", tuning_id: str, resumed: bool, stop: threading.Event
) -> "TuningRow":
    """Claim the tuning and run it to its end, or follow the worker that has it, until `stop`: what
    runs here is then broken off, and the tuning given back to the queue."""
    from autosync.documents import from_json
    from autosync.search.loop.settings import Settings

    reader = EventReader(database, tuning_id)
    if resumed:
        reader.unseen()  # an earlier run has printed them
    settings = from_json(Settings, reader.tuning().settings)
    with tuning_bar(settings.budget, settings.repeats) as bar:
        _run_or_follow(reader, bar, stop)
    return reader.tuning()


def _run_or_follow(reader: EventReader, bar: TuningProgressBar, stop: threading.Event) -> None:
    from autosync.api.engine.queue_worker import run_claim

    runner: threading.Thread | None = None
    while not _ended(reader.tuning()) and not stop.is_set():
        _show(reader, bar)
        if (runner is None or not runner.is_alive()) and (held := _claim(reader)):
            work = (reader.database, held, stop)
            runner = threading.Thread(target=run_claim, args=work, daemon=True)
            runner.start()
        stop.wait(POLL_SECONDS)
    _show(reader, bar)
    if stop.is_set():
        bar.say("stopping (Ctrl-C again: at once)")
    if runner is not None:
        runner.join(GIVEN_BACK_SECONDS)


def _ended(tuning: "TuningRow") -> bool:
    from autosync.api.db.tables import FINAL

    return tuning.state in FINAL


def _show(reader: EventReader, bar: TuningProgressBar) -> None:
    for event in reader.unseen():
        bar.see(event)


def _claim(reader: EventReader) -> "Claim | None":
    from autosync.api.engine.tuning_queue import claim

    worker = f"{socket.gethostname()}:{os.getpid()}"
    return claim(reader.database, worker, tuning_id=reader.tuning_id)
