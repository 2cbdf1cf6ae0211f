"""The database that a command names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from autosync.errors import NotFound

if TYPE_CHECKING:
    from autosync.api.db.database import Database


@contextmanager
def opened(url: str, create: bool = False) -> "Iterator[Database]":
    """The database, brought to this version's schema by its migrations.

    Raises:
        NotFound: it is an SQLite file that is not there, and `create` is off.
    """
    from autosync.api.db.database import connect
    from autosync.api.db.schema_migration import migrate

    if not create:
        refuse_missing(url)
    migrate(url)
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
    from autosync.api.db.database import parse_url

    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).exists():
        raise NotFound(
            f"there is no database {url!r}.",
            thing="--db",
            value=url,
            remedy="`autosync tune` and `autosync serve` make one; name it with --db.",
        )


def has_keys(url: str) -> bool:
    """Whether keys were ever made in the database; an SQLite file that is not there has none."""
    from autosync.api.engine import api_keys

    try:
        with opened(url) as database, database.reading() as session:
            return api_keys.has_keys(session)
    except NotFound:
        return False
