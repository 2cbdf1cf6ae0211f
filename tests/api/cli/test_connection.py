"""The worker that a command runs beside its client."""

import sqlite3
import threading
from typing import NoReturn

import pytest
from sqlalchemy.exc import OperationalError

from autosync.api.cli import connection
from autosync.api.cli.connection import connected, embedded_worker
from autosync.api.engine import job_queue
from tests.waiting import until

TRIES = 3


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
        until(lambda: len(tried) >= TRIES, "asked again")
    (words,) = said
    assert "the disk is full" in words
    assert "UPDATE" not in words
