"""A disk that fills up under a tuning and is freed again, in a mount namespace of its own.

`python -m tests.api.engine.full_disk FOLDER`, started by `unshare --mount`: FOLDER becomes a small
file system. Prints what the test looks at, as JSON.
"""

import errno
import json
import logging
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from sqlalchemy import func, select

from autosync.api.db import Database, connect, migrate
from autosync.api.db.tables import ProposalRow
from autosync.api.engine.queue_worker import work
from autosync.api.engine.submission import enqueue
from autosync.trials.contract import TrialRequest
from tests.api.engine.test_queue_worker import REQUEST as SHORT
from tests.api.engine.test_queue_worker import rows, state
from tests.search.collect.scripted_launcher import ScriptedLauncher, steady
from tests.waiting import until

SIZE_MIB = 16
REQUEST = replace(SHORT, simulator="timeline")
TRIAL_SECONDS = 0.3
"""The disk fills up while a trial runs."""


class Complaints(logging.Handler):
    """What the worker logs of its database."""

    def __init__(self) -> None:
        super().__init__()
        self.full = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "disk is full" in record.getMessage():
            self.full.set()


def mount(folder: Path) -> None:
    options = f"size={SIZE_MIB}m"
    command = ["mount", "-t", "tmpfs", "-o", options, "autosync", str(folder)]
    subprocess.run(command, check=True)


def fill(path: Path) -> None:
    """Take all that is left of the file system."""
    try:
        with path.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def slowly(request: TrialRequest, number: int) -> float:
    time.sleep(TRIAL_SECONDS)
    return steady(request, number)


def trials(database: Database) -> list[tuple[str, list[float]]]:
    return [(row.key, row.iteration_seconds) for row in rows(database)]


def main(folder: Path) -> None:
    mount(folder)
    url = f"sqlite:///{folder / 'autosync.db'}"
    migrate(url)
    database = connect(url)
    tuning_id = enqueue(database, REQUEST)
    complaints, stop = Complaints(), threading.Event()
    logging.getLogger("autosync.api.engine.queue_worker").addHandler(complaints)
    options = {"lease_seconds": 8.0, "launcher_of": lambda name: ScriptedLauncher(slowly)}
    worker = threading.Thread(target=work, args=(url, stop), kwargs=options)
    worker.start()
    try:
        until(lambda: len(trials(database)) >= 2, "two trials")
        fill(folder / "ballast")
        until(complaints.full.is_set, "a full disk")
        recorded = trials(database)
        (folder / "ballast").unlink()
        until(lambda: state(database, tuning_id) == "finished", "the end")
    finally:
        stop.set()
        worker.join()
    after = trials(database)
    with database.reading() as session:
        proposed = session.scalar(select(func.count()).select_from(ProposalRow))
    database.close()
    found = {"recorded": recorded, "after": after, "proposed": proposed}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
