"""The database that a command names."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api.db.database import Database


@contextmanager
def opened(url: str) -> "Iterator[Database]":
    """The database, created or upgraded through its migrations when need be."""
    from api.db.database import connect
    from api.db.migrate import migrate

    migrate(url)
    database = connect(url)
    try:
        yield database
    finally:
        database.close()
