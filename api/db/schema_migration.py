"""Brings a database to the schema of this version, through the migrations."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, event

import autosync
from autosync.api.db.database import BUSY_SECONDS, parse_url
from autosync.errors import NotFound, NotSupported

MIGRATIONS = Path(autosync.__file__).parent / "migrations"
"""Of the package: a link in a clone, a folder when installed."""
LOCK_KEY = 0x6175746F73796E63
"""Of PostgreSQL's advisory lock; "autosync" in ASCII."""


def migrate(url: str, revision: str = "head") -> None:
    """Create or upgrade the database (or downgrade it: `base`, `-1`, a revision).

    All steps are one transaction under a lock: processes that start together migrate once, and
    a migration that fails leaves the database as it was.
    """
    parsed = parse_url(url)
    sqlite = parsed.get_backend_name() == "sqlite"
    # Foreign keys stay off here: SQLite alters a table by copying it, and dropping the old one
    # would delete what refers to it.
    engine = create_engine(parsed, connect_args={"timeout": BUSY_SECONDS} if sqlite else {})
    if sqlite:
        event.listen(engine, "connect", _use_wal)
        event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with engine.begin() as connection:
            if not sqlite:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK_KEY})")
            _run(connection, revision)
    finally:
        engine.dispose()


def require_schema(url: str) -> None:
    """Checks that the database has the schema of this version; an empty one gets it.

    Raises:
        NotSupported: it has an older schema. NotFound: it has one that this version does not know.
    """
    engine = create_engine(parse_url(url))
    try:
        with engine.connect() as connection:
            current = current_revision(connection)
    finally:
        engine.dispose()
    script = ScriptDirectory.from_config(alembic_config())
    if current is None:
        migrate(url)
    elif current != script.get_current_head():
        _check_known(current, script)
        raise NotSupported(
            f"the database is at schema revision {current}; this version needs "
            f"{script.get_current_head()}.",
            thing="database",
            value=current,
            remedy="Make a copy of it, then run `autosync db upgrade --db URL`.",
        )


def _run(connection: Connection, revision: str) -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    current = current_revision(connection)
    script = ScriptDirectory.from_config(config)
    if current:
        _check_known(current, script)
    older = {step.revision for step in script.iterate_revisions(current, "base")} if current else ()
    if revision == "base" or revision.startswith("-") or revision in older:
        command.downgrade(config, revision)
    else:
        command.upgrade(config, revision)


def _check_known(current: str, script: ScriptDirectory) -> None:
    known = [step.revision for step in script.walk_revisions()]
    if current < min(known):
        raise NotFound(
            f"the database is at schema revision {current}; this version reads {min(known)} on.",
            thing="database",
            value=current,
            remedy=f"Open it once with an autosync of schema {min(known)}, or name a new database.",
        )
    if current not in known:
        raise NotFound(
            f"the database is at schema revision {current}, which this version does not know.",
            thing="database",
            value=current,
            remedy="It was written by a newer version: upgrade autosync.",
        )


def current_revision(connection: Connection) -> str | None:
    """The schema revision that the database is at; None when it is empty."""
    return MigrationContext.configure(connection).get_current_revision()


def alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _use_wal(connection: object, record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]
    connection.execute("PRAGMA journal_mode=WAL")  # type: ignore[attr-defined]  # kept in the file
