"""The database that a command names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from autosync.errors import NotFound

if TYPE_CHECKING:
    from autosync.api.db.database import Database

LAST_PROMOTION = "SELECT number FROM simulator_promotions ORDER BY id DESC LIMIT 1"


@contextmanager
def opened(url: str, create: bool = False) -> "Iterator[Database]":
    """The database; where it is empty, this version's schema is made in it.

    Raises:
        NotFound: it is an SQLite file that is not there, and `create` is off.
        NotSupported: it has an older schema.
    """
    if not create:
        refuse_missing(url)
    from autosync.api.db.database import connect
    from autosync.api.db.schema_migration import require_schema

    require_schema(url)
    database = connect(url)
    try:
        yield database
    finally:
        database.close()


def refuse_missing(url: str) -> None:
    """
    Raises:
        NotFound: it is an SQLite file that is not there.
    """
    file = _sqlite_file(url)
    if file is not None and not Path(file).exists():
        raise NotFound(
            f"there is no database {url!r}.",
            thing="--db",
            value=url,
            remedy="`autosync tune` and `autosync serve` make one; name it with --db.",
        )


def uses_bundled_simulator(url: str) -> bool:
    """Whether an SQLite file has the bundled simulator in use, asked through Python's own driver:
    SQLAlchemy and the migrations take longer to load than a ranking. False of any other database,
    and where the file does not say it."""
    import sqlite3
    from contextlib import closing

    from autosync.api.engine.registry import BUNDLED_VERSION

    file = _sqlite_file(url)
    if file is None:
        return False
    address = f"{Path(file).absolute().as_uri()}?mode=rw"  # makes no file
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            last = connection.execute(LAST_PROMOTION).fetchone()
    except sqlite3.Error:
        return False
    return last is None or last[0] == BUNDLED_VERSION


def has_keys(url: str) -> bool:
    """Whether keys were ever made in the database, of whatever schema; an SQLite file that is not
    there has none."""
    from sqlalchemy import inspect

    from autosync.api.db.database import connect
    from autosync.api.engine import api_keys

    try:
        refuse_missing(url)
    except NotFound:
        return False
    database = connect(url)
    try:
        with database.reading() as session:
            there = inspect(session.connection()).has_table("api_keys")
            return there and api_keys.has_keys(session)
    finally:
        database.close()


def _sqlite_file(url: str) -> str | None:
    """The file of an SQLite URL; None of another database's. The usual form is read without
    SQLAlchemy, which takes longer to load than a ranking."""
    usual = "sqlite:///"
    if url.startswith(usual) and url != usual and "?" not in url and "%" not in url:
        return url.removeprefix(usual)
    from autosync.api.db.database import parse_url

    parsed = parse_url(url)
    return str(parsed.database) if parsed.get_backend_name() == "sqlite" else None
