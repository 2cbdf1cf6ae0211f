"""Brings a database to the schema of this version, through the migrations."""

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, create_engine, event, inspect, text

import autosync
from autosync.api.db.database import BUSY_SECONDS, Database, masked, parse_url
from autosync.api.db.tables import Base
from autosync.errors import NotFound, NotSupported

if TYPE_CHECKING:  # what only looks at the revision needs no Alembic, which loads slowly
    from alembic.config import Config

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


def make_passing_tables(database: Database) -> None:
    """This version's schema in an empty database that nobody opens again: without the migrations
    that lead there, which take ten times as long, and without their mark."""
    Base.metadata.create_all(database.engine)


def require_schema(url: str, create: bool = False) -> None:
    """Checks that the database has the schema of this version. create: an empty one gets it.

    Raises:
        NotSupported: it has an older schema. NotFound: it has one that this version does not know,
            or none.
    """
    engine = create_engine(parse_url(url))
    try:
        with engine.connect() as connection:
            current = current_revision(connection)
    finally:
        engine.dispose()
    if current is None:
        if not create:
            raise NotFound(
                f"the database {masked(url)!r} is empty.",
                thing="database",
                value=masked(url),
                remedy="`autosync db upgrade` and `autosync serve` make its tables; name another: "
                "--db.",
            )
        migrate(url)
    elif current != known_revisions()[-1]:
        _check_known(current)
        raise NotSupported(
            f"the database is at schema revision {current}; this version needs "
            f"{known_revisions()[-1]}.",
            thing="database",
            value=current,
            remedy="Make a copy of it, then run `autosync db upgrade --db URL`.",
        )


def _run(connection: Connection, revision: str) -> None:
    from alembic import command

    config = alembic_config()
    config.attributes["connection"] = connection
    current = current_revision(connection)
    if current:
        _check_known(current)
    older = [each for each in known_revisions() if current and each <= current]
    if revision == "base" or revision.startswith("-") or revision in older:
        command.downgrade(config, revision)
    else:
        command.upgrade(config, revision)


def _check_known(current: str) -> None:
    known = known_revisions()
    if current < known[0]:
        raise NotFound(
            f"the database is at schema revision {current}; this version reads {known[0]} on.",
            thing="database",
            value=current,
            remedy=f"Open it once with an autosync of schema {known[0]}, or name a new database.",
        )
    if current not in known:
        raise NotFound(
            f"the database is at schema revision {current}, which this version does not know.",
            thing="database",
            value=current,
            remedy="It was written by a newer version: upgrade autosync.",
        )


def known_revisions() -> list[str]:
    """From the oldest to the newest: files of migrations begin with their numbers."""
    return sorted(file.name[:4] for file in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def current_revision(connection: Connection) -> str | None:
    """The schema revision that the database is at; None when it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return found


def alembic_config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _use_wal(connection: object, record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]
    connection.execute("PRAGMA journal_mode=WAL")  # type: ignore[attr-defined]  # kept in the file
