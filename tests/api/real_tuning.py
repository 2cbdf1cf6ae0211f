"""The real tuning of a test run: on the command line, killed with -9 in its middle, and resumed."""

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autosync.api.db import Database
from tests.api.cli.command import LONGEST_SECONDS, autosync, small_inputs, start
from tests.api.databases import opened

BUDGET, REPEATS = 4, 2
OPTIONS = (
    *("--budget", str(BUDGET), "--repeats", str(REPEATS), "--proposals", "100"),
    *("--launcher", "local", "--byte-scale", "1", "--time-scale", "1"),
)
TRIALS = "SELECT key, created_at, iteration_seconds FROM trials ORDER BY position"


@dataclass(frozen=True, slots=True)
class RealTuning:
    """folder: holds `autosync.db`, the inputs and the bundle `mine.json`. before: the trials that
    were finished when it was killed. printed: by the command that resumed it."""

    folder: Path
    id: str
    before: list[Any]
    printed: str

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'autosync.db'}"

    @contextmanager
    def database(self) -> Iterator[Database]:
        with opened(self.url) as database:
            yield database


def stored(folder: Path, query: str) -> list[Any]:
    """Nothing where the database is not there yet."""
    database = folder / "autosync.db"
    if not database.exists():
        return []
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError:  # the migrations have not run yet
            return []


def until_stored(folder: Path, process: Any, query: str, rows: int) -> None:
    """Until the process has stored so many, or has ended."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while len(stored(folder, query)) < rows and process.poll() is None:
        assert time.monotonic() < deadline, query
        time.sleep(0.02)


def killed_and_resumed(folder: Path) -> RealTuning:
    process = start(folder, "tune", *small_inputs(folder), *OPTIONS)
    until_stored(folder, process, TRIALS, 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = stored(folder, TRIALS)
    ((tuning_id,),) = stored(folder, "SELECT id FROM jobs WHERE kind = 'tuning'")
    arguments = ("tune", "chain.json", "pair.yaml", *OPTIONS, "--resume", tuning_id[:8])
    done = autosync(folder, *arguments, "-o", "mine.json")
    return RealTuning(folder, tuning_id, before, done.stdout + done.stderr)
