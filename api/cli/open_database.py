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

    file = url.removeprefix("sqlite:///")
    if not create and file != url and not Path(file).exists():
        raise NotFound(
            f"there is no database {url!r}.",
            thing="--db",
            value=url,
            remedy="`autosync tune` and `autosync serve` make one; name it with --db.",
        )
    migrate(url)
    database = connect(url)
    try:
        yield database
    finally:
        database.close()
