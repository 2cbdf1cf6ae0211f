"""Run a tuning of the database in this process and show how it goes."""

import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import Progress, TaskID

from autosync.api.cli.console import milliseconds
from autosync.api.cli.progress import progress_bar

if TYPE_CHECKING:
    from autosync.api.db.database import Database
    from autosync.api.db.tables import TuningRow
    from autosync.api.engine.job_queue import Claim

POLL_SECONDS = 0.2
PHASES = {
    "waiting": "waiting for a worker",
    "opening": "starting the workers",
    "ranking": "ranking proposals",
    "search": "trying strategies",
    "confirm": "confirming the winner",
    "done": "done",
}
PRINTED = frozenset({"waiting", "search", "confirm"})
"""Events that get a line of their own; the bar shows the phase."""


@dataclass
class Follower:
    """Prints each finished step of a tuning once, and keeps the bar at the step under way."""

    database: "Database"
    tuning_id: str
    seen: int = 0

    def skip_past(self) -> None:
        """Leave out what an earlier run has printed."""
        self.seen = max((row_id for row_id, _, _ in self._events()), default=0)

    def show(self, bar: Progress, task: TaskID) -> "TuningRow":
        from autosync.api.db.tables import TuningRow

        for row_id, kind, message in self._events():
            self.seen = row_id
            if kind in PRINTED:
                bar.console.print(f"[dim]{kind:>7}[/]  {escape(message)}")
        with self.database.reading() as session:
            tuning = session.get_one(TuningRow, self.tuning_id)
        best = tuning.best_seconds
        ending = f", best {milliseconds(best)} ms" if best is not None else ""
        words = PHASES.get(tuning.phase, tuning.phase)
        bar.update(
            task,
            description=words + ending,
            completed=tuning.done,
            total=tuning.total or None,
        )
        return tuning

    def _events(self) -> list[tuple[int, str, str]]:
        from sqlalchemy import select

        from autosync.api.db.tables import EventRow

        query = (
            select(EventRow.id, EventRow.kind, EventRow.message)
            .where(EventRow.tuning_id == self.tuning_id, EventRow.id > self.seen)
            .order_by(EventRow.id)
        )
        with self.database.reading() as session:
            return [(row.id, row.kind, row.message) for row in session.execute(query)]


def run_here(database: "Database", tuning_id: str, resumed: bool) -> "TuningRow":
    """Claim the tuning and run it to its end, or follow the worker that has it.

    Raises:
        KeyboardInterrupt: after the trial at hand was stored and the tuning given back.
    """
    from autosync.api.db.tables import FINAL
    from autosync.api.engine.queue_worker import run_claim

    stop, follower = threading.Event(), Follower(database, tuning_id)
    if resumed:
        follower.skip_past()
    runner: threading.Thread | None = None
    with progress_bar() as bar:
        task = bar.add_task("waiting for a worker", total=None)
        try:
            while (tuning := follower.show(bar, task)).state not in FINAL:
                if (runner is None or not runner.is_alive()) and (held := _claim(follower)):
                    runner = threading.Thread(target=run_claim, args=(database, held, stop))
                    runner.start()
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            bar.update(task, description="finishing the trial at hand (Ctrl-C again: at once)")
            stop.set()
            if runner is not None:
                runner.join()
            raise
    if runner is not None:
        runner.join()
    return tuning


def _claim(follower: Follower) -> "Claim | None":
    from autosync.api.engine.job_queue import claim

    worker = f"{socket.gethostname()}:{os.getpid()}"
    return claim(follower.database, worker, tuning_id=follower.tuning_id)
