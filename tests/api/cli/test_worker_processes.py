"""How a service stops its workers, and the worker that a command runs beside its client."""

import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest
from sqlalchemy.exc import OperationalError

from autosync.api.cli import connection, worker_processes
from autosync.api.cli.connection import connected, embedded_worker
from autosync.api.cli.worker_processes import SupervisedWorker, WorkerProcesses
from autosync.api.engine import job_queue
from tests.waiting import until

WORKER = """
import signal, sys, time
from pathlib import Path
asked, end = Path(sys.argv[1]), Path(sys.argv[2])
def ask(number, frame):
    with asked.open("a") as file:
        file.write("asked ")
signal.signal(signal.SIGTERM, ask)
print("ready", flush=True)
while not end.exists():
    time.sleep(0.01)
"""


def test_who_gives_back_what_runs_is_not_asked_again(tmp_path: Path) -> None:
    """A second signal ends a worker at once: what ran would wait for the end of its lease."""
    asked, end = tmp_path / "asked", tmp_path / "end"
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(asked), str(end)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process:
        process.stdout.readline()
        workers = WorkerProcesses("sqlite://", 0)
        workers.workers.append(SupervisedWorker("sqlite://", process, time.monotonic()))
        workers.ask_to_stop()
        deadline = time.monotonic() + 100
        while not asked.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        workers.ask_to_stop()
        end.touch()
        workers.stop()
    assert process.returncode == 0
    assert asked.read_text() == "asked "


def ended() -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process


def test_a_worker_that_failed_thousands_of_times_is_still_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the database is away for days."""
    worker = SupervisedWorker("sqlite://", ended(), time.monotonic(), failures=5000)
    worker.keep_alive()
    assert worker.failures == 5001
    another = ended()
    monkeypatch.setattr(worker_processes, "_start", lambda *_: another)
    worker.due = 0.0
    worker.keep_alive()
    assert worker.process is another


def test_a_worker_is_started_later_where_the_system_starts_none_now(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(worker_processes, "_start", refused)
    worker = SupervisedWorker("sqlite://")
    worker.keep_alive()
    said = " ".join(capsys.readouterr().err.split())
    assert "no worker can be started" in said
    assert "Resource temporarily unavailable" in said
    another = ended()
    monkeypatch.setattr(worker_processes, "_start", lambda *_: another)
    worker.due = 0.0
    worker.keep_alive()
    assert worker.process is another


def test_a_database_without_space_is_said_once(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not five times a second, until there is space again."""
    tried: list[str] = []
    said: list[str] = []

    def full(*_: object, **__: object) -> NoReturn:
        tried.append("claim")
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise OperationalError("UPDATE jobs SET state = ?", None, error)

    monkeypatch.setattr(job_queue, "claim", full)
    monkeypatch.setattr(connection, "warn", said.append)
    monkeypatch.setattr(connection, "POLL_SECONDS", 0.0)
    never = threading.Event()
    with connected(sqlite_url, None) as at, embedded_worker(at, "0" * 32, never):
        until(lambda: len(tried) >= 3, "asked again")
    (words,) = said
    assert "the disk is full" in words
    assert "UPDATE" not in words
