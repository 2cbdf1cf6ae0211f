"""Connections: how SQLite is opened, and which databases are refused."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError, OperationalError

from autosync.api.db import connect, migrate
from autosync.api.db.database import database_trouble, masked
from autosync.errors import InvalidInput
from tests.api.databases import opened


def test_sqlite_runs_in_wal_with_foreign_keys(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    migrate(url)
    with opened(url) as database, database.reading() as session:
        assert session.execute(text("pragma journal_mode")).scalar() == "wal"
        assert session.execute(text("pragma foreign_keys")).scalar() == 1
        assert session.execute(text("pragma busy_timeout")).scalar() == 30_000


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:////no/such/folder/a.db", "folder"),
        ("mysql://localhost/a", "mysql"),
        ("nonsense", "no database URL"),
    ],
)
def test_other_databases_are_refused_with_the_way_out(url: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        connect(url)
    assert "sqlite:///FILE" in caught.value.remedy


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///autosync.db", "sqlite:///autosync.db"),
        ("postgresql://me:s3cret@db/a", "postgresql://me:***@db/a"),
        ("postgresql://me@db/a?password=s3cret", "postgresql://me@db/a?password=hidden"),
        ("postgresql://me@db/a?passwd=s3cret", "postgresql://me@db/a?passwd=hidden"),
        ("postgresql://me@db/a?sslpassword=s3cret", "postgresql://me@db/a?sslpassword=hidden"),
        ("postgresql://me:s3cret@db:port/a", "postgresql://***"),
        ("postgresql//me:s3cret@db/a", "***"),
        ("postgresql://me:p@s3cret@db/a", "postgresql://***"),
        ("postgresql://me:p@s3/cret@db/a", "postgresql://***"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert masked(url).replace("%40", "@") == shown  # SQLAlchemy quotes it from 2.1 on


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:s3cret@db/a",
        "postgresql//me:s3cret@db/a",
        "postgresql://me:p@s3cret@db/a",
        "postgresql://me:p@ss/s3cret@db/a",
        "postgresql://me:s3cret@db:port/a",
    ],
)
def test_a_refused_url_is_shown_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        connect(url)
    assert "s3cret" not in f"{caught.value} {caught.value.value}"


def test_an_at_sign_in_a_password_is_to_be_percent_encoded() -> None:
    with pytest.raises(InvalidInput, match="has an @ beside") as caught:
        connect("postgresql://me:p@s3cret@db/a")
    assert "%40" in caught.value.remedy


def test_a_full_disk_is_no_defect_and_a_missing_table_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    migrate(url)
    with opened(url) as database:
        with database.writing() as session:
            session.execute(text("pragma max_page_count = 1"))
            with pytest.raises(DatabaseError) as full:
                session.execute(text("create table filling as select zeroblob(1000000)"))
        trouble = database_trouble(full.value)
        assert trouble is not None
        assert "the disk is full" in trouble.message
        assert "--db" in trouble.remedy
        with database.reading() as session, pytest.raises(DatabaseError) as missing:
            session.execute(text("select * from nothing"))
        assert database_trouble(missing.value) is None
    assert database_trouble(OSError()) is None


def test_a_file_system_without_locks_is_no_defect() -> None:
    failed = sqlite3.OperationalError("locking protocol")
    failed.sqlite_errorcode = sqlite3.SQLITE_PROTOCOL
    trouble = database_trouble(OperationalError("BEGIN IMMEDIATE", {}, failed))
    assert trouble is not None
    assert "network file systems (locking protocol)" in trouble.message
