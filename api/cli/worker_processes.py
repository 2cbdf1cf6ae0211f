"""Workers as processes of their own beside the service."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from autosync.environment import (
    DATABASE_URL_VARIABLE,
    PASSED_VARIABLE,
    PREFIX_VARIABLE,
    PYTHON_VARIABLE,
    RAY_ADDRESS_VARIABLE,
    allowed_environment,
)

STOP_SECONDS = 20.0
"""How long workers may finish the trial at hand before they are killed."""
WORKER_VARIABLES = (
    *(PASSED_VARIABLE, PREFIX_VARIABLE, PYTHON_VARIABLE, RAY_ADDRESS_VARIABLE),
    *("PG*", "RAY_*"),
)
"""What a worker has besides what its trials have: how it reaches the database and hosts."""


@contextmanager
def started_workers(db: str, count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Workers as processes of their own; asked to stop, then killed, on the way out."""
    workers = [_start(db) for _ in range(count)]
    try:
        yield workers
    finally:
        _stop(workers)


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
