"""Workers as processes of their own beside the service: started, watched, replaced, stopped."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from autosync.api.cli.console import warn
from autosync.environment import (
    DATABASE_URL_VARIABLE,
    PASSED_VARIABLE,
    PREFIX_VARIABLE,
    PYTHON_VARIABLE,
    RAY_ADDRESS_VARIABLE,
    allowed_environment,
)

STOP_SECONDS = 10.0
"""How long workers may take to give back what runs before they are killed; they need 2 s."""
POLL_SECONDS = 0.5
HEALTHY_SECONDS = 60.0
"""A worker that lived so long did not fail at its start: the next one begins at once."""
LONGEST_PAUSE_SECONDS = 60.0
"""Before a worker is started whose predecessors ended at once; doubled from one second."""
WORKER_VARIABLES = (
    *(PASSED_VARIABLE, PREFIX_VARIABLE, PYTHON_VARIABLE, RAY_ADDRESS_VARIABLE),
    *("PG*", "RAY_*"),
)
"""What a worker has besides what its trials have: how it reaches the database and hosts."""


@dataclass
class SupervisedWorker:
    """One worker after another over `db`. failures: how many in a row ended soon."""

    db: str
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    due: float = 0.0
    failures: int = field(default=0)

    def keep_alive(self) -> None:
        """Start a worker where none lives and the pause is over."""
        now = time.monotonic()
        if self.process is not None and (code := self.process.poll()) is not None:
            soon = now - self.started < HEALTHY_SECONDS
            self.failures = self.failures + 1 if soon else 0
            pause = min(2.0 ** (self.failures - 1), LONGEST_PAUSE_SECONDS) if soon else 0.0
            self.due = now + pause
            warn(f"worker {self.process.pid} has ended ({code}); another starts in {pause:.0f} s")
            self.process = None
        if self.process is None and now >= self.due:
            self.process, self.started = _start(self.db), now


@contextmanager
def started_workers(db: str, count: int) -> Iterator[list[SupervisedWorker]]:
    """So many workers, replaced when they end; asked to stop, then killed, on the way out."""
    workers = [SupervisedWorker(db) for _ in range(count)]
    done = threading.Event()
    thread = threading.Thread(target=_supervise, args=(workers, done), name="workers", daemon=True)
    thread.start()
    try:
        yield workers
    finally:
        done.set()
        thread.join()
        _stop([worker.process for worker in workers if worker.process is not None])


def _supervise(workers: list[SupervisedWorker], done: threading.Event) -> None:
    while not done.is_set():
        for worker in workers:
            worker.keep_alive()
        done.wait(POLL_SECONDS)


def _start(db: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "autosync.api.cli.main", "worker"]
    return subprocess.Popen(
        [*command, "--parent", str(os.getpid())],
        # others see command lines: the URL, which may hold a password, stands in the environment
        env={**allowed_environment(WORKER_VARIABLES), DATABASE_URL_VARIABLE: db},
        stdin=subprocess.DEVNULL,
        # a session of its own: Ctrl-C on the terminal reaches the service, which asks it to stop
        start_new_session=True,
    )


def _stop(workers: list["subprocess.Popen[bytes]"]) -> None:
    for process in workers:
        process.terminate()
    for process in workers:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
