"""Workers as processes of their own beside the service: started, watched, replaced, stopped."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.markup import escape

from autosync.api.cli.console import warn
from autosync.environment import (
    DATABASE_URL_VARIABLE,
    PASSED_VARIABLE,
    PREFIX_VARIABLE,
    PYTHON_VARIABLE,
    RAY_ADDRESS_VARIABLE,
    REPEATS_VARIABLE,
    SHARE_GPUS_VARIABLE,
    allowed_environment,
)

STOP_SECONDS = 10.0
"""How long workers may take to give back what runs before they are killed; they need 2 s."""
POLL_SECONDS = 0.5
HEALTHY_SECONDS = 60.0
"""A worker that lived so long did not fail at its start: the next one begins at once."""
LONGEST_PAUSE_SECONDS = 60.0
"""Before a worker is started whose predecessors ended at once; doubled from one second."""
MOST_DOUBLINGS = 10
"""How often that pause is doubled at most: 2.0 ** 1024 is no number any more."""
WORKER_VARIABLES = (
    *(PASSED_VARIABLE, PREFIX_VARIABLE, PYTHON_VARIABLE, RAY_ADDRESS_VARIABLE, REPEATS_VARIABLE),
    *(SHARE_GPUS_VARIABLE, "PG*", "RAY_*"),
)
"""What a worker has besides what its trials have: how it reaches the database and hosts, and how
patient it is."""


@dataclass
class SupervisedWorker:
    """One worker after another over `db`. keep_days: as of the command. failures: how many in a
    row ended soon."""

    db: str
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    due: float = 0.0
    failures: int = field(default=0)
    keep_days: int | None = None

    def keep_alive(self) -> None:
        """Start a worker where none lives and the pause is over."""
        now = time.monotonic()
        if self.process is not None and (code := self.process.poll()) is not None:
            soon = now - self.started < HEALTHY_SECONDS
            self._pause(f"worker {self.process.pid} has ended ({code})", now, soon)
            self.process = None
        if self.process is None and now >= self.due:
            try:
                self.process, self.started = _start(self.db, self.keep_days), now
            except OSError as error:  # no memory or process number is left, for a while
                self._pause(f"no worker can be started ({escape(str(error))})", now, soon=True)

    def _pause(self, why: str, now: float, soon: bool) -> None:
        self.failures = self.failures + 1 if soon else 0
        doubled = min(self.failures - 1, MOST_DOUBLINGS)
        pause = min(2.0**doubled, LONGEST_PAUSE_SECONDS) if soon else 0.0
        self.due = now + pause
        warn(f"{why}; another starts in {pause:.0f} s")


class WorkerProcesses:
    """So many workers over `db`, replaced when they end."""

    def __init__(self, db: str, count: int, keep_days: int | None = None) -> None:
        self.workers = [SupervisedWorker(db, keep_days=keep_days) for _ in range(count)]
        self._done = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="workers", daemon=True)
        self._supervisor.start()

    def ask_to_stop(self) -> None:
        """They give back what runs; no other one takes their place. May be called twice: a second
        signal would end them before they have."""
        if self._done.is_set():
            return
        self._done.set()
        self._supervisor.join()
        for process in self._living():
            process.terminate()

    def stop(self) -> None:
        """Ask them, wait for them, and kill those that do not end."""
        self.ask_to_stop()
        for process in self._living():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _living(self) -> list["subprocess.Popen[bytes]"]:
        started = [each.process for each in self.workers if each.process is not None]
        return [process for process in started if process.poll() is None]

    def _supervise(self) -> None:
        while not self._done.is_set():
            for worker in self.workers:
                worker.keep_alive()
            self._done.wait(POLL_SECONDS)


@contextmanager
def started_workers(db: str, count: int, keep_days: int | None = None) -> Iterator[WorkerProcesses]:
    """So many workers, stopped on the way out."""
    workers = WorkerProcesses(db, count, keep_days)
    try:
        yield workers
    finally:
        workers.stop()


def _start(db: str, keep_days: int | None) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "autosync.api.cli.main", "worker"]
    if keep_days is not None:
        command += ["--keep-days", str(keep_days)]
    return subprocess.Popen(
        [*command, "--parent", str(os.getpid())],
        # others see command lines: the URL, which may hold a password, stands in the environment
        env={**allowed_environment(WORKER_VARIABLES), DATABASE_URL_VARIABLE: db},
        stdin=subprocess.DEVNULL,
        # a session of its own: Ctrl-C on the terminal reaches the service, which asks it to stop
        start_new_session=True,
    )
