"""Connections: SQLite in WAL by default, PostgreSQL by URL; a transaction reads or writes."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Double, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import GenericFunction

from autosync.errors import InvalidInput, NotSupported

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class now_seconds(GenericFunction[float]):  # noqa: N801  # a SQL function, named like one
    """Seconds since 1970-01-01 UTC, to about a millisecond."""

    type = Double()
    inherit_cache = True


@compiles(now_seconds, "sqlite")
def _sqlite(element: Any, compiler: Any, **options: Any) -> str:
    # unixepoch('subsec') needs SQLite 3.42
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now_seconds, "postgresql")
def _postgresql(element: Any, compiler: Any, **options: Any) -> str:
    # now() stands still within a transaction
    return "extract(epoch from clock_timestamp())::double precision"


SQLITE_TROUBLES = {
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: its folder cannot be read or written to",
    sqlite3.SQLITE_READONLY: "cannot be written to",
    sqlite3.SQLITE_PERM: "may not be accessed",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error",
    sqlite3.SQLITE_NOTADB: "is a file of another kind",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_PROTOCOL: "cannot be locked, as on some network file systems",
}
"""By primary result code (sqlite.org/rescode.html). Others, as of a missing table, are defects."""
PRIMARY_CODE = 0xFF


def database_trouble(error: Exception) -> NotSupported | None:
    """What its operator can mend; None for any other error."""
    if not isinstance(error, DatabaseError):
        return None
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", 0) & PRIMARY_CODE
        if code not in SQLITE_TROUBLES:
            return None
        return NotSupported(
            f"the database {SQLITE_TROUBLES[code]} ({error.orig}).",
            thing="database",
            remedy="See to the file, its folder and the space left there, or name another with "
            "--db. What was stored stays.",
        )
    if isinstance(error, OperationalError) and type(error.orig).__module__.startswith("psycopg"):
        lines = str(error.orig).strip().splitlines() or ["no reason given"]
        return NotSupported(
            f"the database does not answer: {lines[0]}.",
            thing="database",
            remedy="See that it runs and that --db names it.",
        )
    return None


BUSY_SECONDS = 30
"""How long a writer waits for another: longer than any transaction here takes."""
POOL = {"pool_size": 20, "max_overflow": 20, "pool_timeout": 10}
"""A connection for each of the 40 threads that serve requests; half of them stay open, since what a
connection has read and compiled is gone with it. Who waits for one for 10 s gets an error, which
the service answers with 503."""
WRITES = "autosync_writes"
"""Execution option of connections whose transactions write."""


@dataclass(frozen=True, slots=True)
class Database:
    """Hands out transactions; safe to share between threads, not between processes."""

    engine: Engine

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A transaction that only reads: on SQLite it never waits for a writer."""
        with Session(self.engine) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction that writes; commits at the end, rolls back on an exception.

        On SQLite it takes the write lock at once (BEGIN IMMEDIATE): a transaction that reads
        first and writes later can otherwise fail in the middle, without waiting.
        """
        engine = self.engine.execution_options(**{WRITES: True})
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session

    def apart(self, connections: int) -> "Database":
        """The same database over connections of its own, so many at the most."""
        url = self.engine.url.render_as_string(hide_password=False)
        return connect(url, {**POOL, "pool_size": 1, "max_overflow": connections - 1})

    @property
    def dialect(self) -> str:
        return self.engine.dialect.name

    def close(self) -> None:
        self.engine.dispose()


def connect(url: str, pool: Mapping[str, int] = POOL) -> Database:
    """Open the database at `url` (`sqlite:///autosync.db`, `postgresql://user@host/name`).

    Nothing is created or changed: see `migrate`. pool: of SQLAlchemy's `create_engine`.

    Raises:
        InvalidInput: no such kind of database, or SQLite without a file. NotSupported: PostgreSQL
            without its driver.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = create_engine(parsed, connect_args={"timeout": BUSY_SECONDS}, **pool)
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        engine = create_engine(parsed, pool_pre_ping=True, **pool)
    return Database(engine)


def parse_url(url: str) -> URL:
    """The URL with its driver; see `connect`."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise _refused(url, "is no database URL") from None
    if _has_stray_at_sign(parsed):
        raise InvalidInput(
            f"the database URL {masked(url)!r} has an @ beside the one before its host.",
            thing="database",
            value=masked(url),
            remedy="Write %40 for an @ in a password or name, and %2F for a slash.",
        )
    if backend == "postgresql":
        if find_spec("psycopg") is None:
            raise NotSupported(
                "PostgreSQL is reached through psycopg, which is not installed.",
                thing="database",
                value=masked(url),
                remedy="Install autosync with its extra `postgresql`, or use sqlite:///FILE.",
            )
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise _refused(url, f"names {backend}, which is not supported")
    if parsed.database in (None, "", ":memory:"):
        raise _refused(url, "names no file, and workers could not share it")
    if not (folder := Path(str(parsed.database)).resolve().parent).is_dir():
        raise _refused(url, f"needs the folder {str(folder)!r}, which does not exist")
    return parsed


def masked(url: str) -> str:
    """The URL without its secrets, as it may be printed and logged."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    if parsed is None or _has_stray_at_sign(parsed):  # nobody knows where in it a password ends
        if "@" not in url and "=" not in url:
            return url
        kind, separator, _ = url.partition("://")
        return f"{kind}://***" if separator and kind.isprintable() and "@" not in kind else "***"
    secret = {name: "hidden" for name in parsed.query if _is_secret(name)}
    return parsed.update_query_dict(secret).render_as_string(hide_password=True)


def _is_secret(parameter: str) -> bool:
    """Of a URL's query: libpq takes `password` and `sslpassword`, and drivers have other names."""
    return any(word in parameter.lower() for word in ("pass", "pwd", "secret", "token", "key"))


def _has_stray_at_sign(url: URL) -> bool:
    """Of a password that is not percent-encoded, whose rest is then read as a host or a name."""
    if url.get_backend_name() == "sqlite":
        return False
    return any("@" in (part or "") for part in (url.host, url.database))


def _refused(url: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"the database {masked(url)!r} {why}.",
        thing="database",
        value=masked(url),
        remedy="Give sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.",
    )


def _configure_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself; `_begin_sqlite` does
    connection.execute("PRAGMA foreign_keys=ON")
    # SQLite's own one knows ASCII alone: what readers search for would not be found
    connection.create_function("lower", 1, _lower, deterministic=True)


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
