"""A row by its key, or the refusal that says where to look."""

from typing import TYPE_CHECKING, TypeVar

from autosync.errors import NotFound

if TYPE_CHECKING:  # commands that may find no database refuse without loading SQLAlchemy
    from sqlalchemy.orm import Session

    from autosync.api.db.tables import Base

Row = TypeVar("Row", bound="Base")
Found = TypeVar("Found")
LONGEST_KEY = 80
"""Characters of an unknown key that a refusal repeats."""


def stored(session: "Session", table: type[Row], key: str, thing: str) -> Row:
    """The row under `key`.

    Raises:
        NotFound: nothing here goes by that id.
    """
    row = session.get(table, key) if key.isalnum() else None  # PostgreSQL refuses some characters
    return found(row, thing, key, f"GET /v1/{thing}s lists what there is.")


def found(value: Found | None, thing: str, key: str, remedy: str, message: str = "") -> Found:
    """The value, which was looked up under `key`.

    Raises:
        NotFound: there was none; says so, or `message`.
    """
    if value is None:
        raise not_found(thing, key, remedy, message)
    return value


def not_found(thing: str, key: str, remedy: str, message: str = "") -> NotFound:
    """Says that there is none, or `message`."""
    shown = key[:LONGEST_KEY]
    text = message or f"there is no {thing} {shown!r}."
    return NotFound(text, thing=thing, value=shown, remedy=remedy)
