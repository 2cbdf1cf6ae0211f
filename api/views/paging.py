"""How lists are sorted and cut into pages."""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import SQLColumnExpression, func, select, tuple_
from sqlalchemy.orm import Session

from autosync.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class SortKey:
    """column: what rows are sorted by. kind: of its values. nullable: rows without one come last,
    whichever way the list is sorted. unique: no two rows are alike, so that nothing breaks ties."""

    column: SQLColumnExpression[Any]
    kind: type = float
    nullable: bool = False
    unique: bool = False


def check_state(state: str, known: Iterable[str]) -> None:
    """Raises InvalidInput where a list is asked for a state that none of it can have."""
    if state not in ("", *known):
        raise InvalidInput(
            f"state is {state[:40]!r}.",
            thing="state",
            value=state[:40],
            remedy=f"There are: {', '.join(known)}.",
        )


def sorted_page(
    session: Session,
    query: Any,
    keys: Mapping[str, SortKey],
    sort: str,
    tie: SQLColumnExpression[str],
    limit: int | None,
    cursor: str | None,
) -> tuple[Sequence[Any], str | None]:
    """Rows of the query with two columns more at their end, and the cursor of the next page.

    query: a select. keys: by name. sort: one of the names, with `-` before it for the largest
    first. tie: a unique column that orders rows with equal keys. limit: by default all.

    Raises:
        InvalidInput: there is no such sort, or the cursor is of no list that is sorted so.
    """
    descending, name = sort.startswith("-"), sort.removeprefix("-")
    if name not in keys:
        raise _no_sort(sort, keys)
    key = keys[name]
    value: SQLColumnExpression[Any] = key.column
    if key.nullable:
        value = func.coalesce(key.column, float("-inf") if descending else float("inf"))
    by = (value,) if key.unique else (value, tie)
    if cursor:
        kinds = (key.kind,) if key.unique else (key.kind, str)
        used, *last = read_cursor(cursor, str, *kinds)
        if used != sort:
            raise _other_sort(used, sort)
        place: Any = value if key.unique else tuple_(*by)
        ended = last[0] if key.unique else tuple(last)
        query = query.where(place < ended if descending else place > ended)
    query = query.order_by(*(column.desc() if descending else column for column in by))
    query = query.add_columns(value, tie)
    rows = session.execute(query if limit is None else query.limit(limit + 1)).all()
    return one_page(rows, limit, lambda row: (sort, *row[-2 : len(row) - 2 + len(by)]))


def _no_sort(sort: str, keys: Mapping[str, SortKey]) -> InvalidInput:
    names = ", ".join(f"{name}, -{name}" for name in keys)
    return InvalidInput(
        f"there is no sort {sort[:40]!r} of this list.",
        thing="sort",
        value=sort[:40],
        remedy=f"There are: {names}; with - the largest come first.",
    )


def _other_sort(used: str, sort: str) -> InvalidInput:
    return InvalidInput(
        f"this cursor is of the list sorted by {used[:40]!r}, not by {sort!r}.",
        thing="cursor",
        value=used[:40],
        remedy="Give the same sort on every page, or no cursor for the first one.",
    )


NEWEST_FIRST = "-created"


def newest(
    session: Session, table: Any, limit: int | None, cursor: str | None
) -> tuple[Sequence[Any], str | None]:
    """Rows of a table with `created_at` and `id`, the newest first, and the next page's cursor."""
    keys = {"created": SortKey(table.created_at)}
    rows, following = sorted_page(
        session, select(table), keys, NEWEST_FIRST, table.id, limit, cursor
    )
    return [row for row, *_ in rows], following


Row = TypeVar("Row")
LONGEST_CURSOR = 2500
"""Characters; keys are an id, up to two names of 200 characters and a few numbers, in UTF-8."""


def one_page(
    rows: Sequence[Row], limit: int | None, key: Callable[[Row], tuple[Any, ...]]
) -> tuple[Sequence[Row], str | None]:
    """The first `limit` rows, and the cursor of the next page; None where this is the last.

    rows: one more than `limit`, where there are so many. key: what they are sorted by.
    """
    if limit is None or len(rows) <= limit:
        return rows, None
    shown = rows[:limit]
    return shown, written_cursor(*key(shown[-1]))


def written_cursor(*key: str | int | float) -> str:
    text = json.dumps(key, ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(text: str, *kinds: type) -> tuple[Any, ...]:
    """The key in a cursor that `written_cursor` made of values of these kinds.

    Raises:
        InvalidInput: it is another one.
    """
    try:
        padded = text[:LONGEST_CURSOR] + "=" * (-len(text) % 4)
        key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise _no_cursor(text) from None
    if not isinstance(key, list) or len(key) != len(kinds):
        raise _no_cursor(text)
    if not all(_fits(value, kind) for value, kind in zip(key, kinds, strict=True)):
        raise _no_cursor(text)
    return tuple(key)


def _fits(value: object, kind: type) -> bool:
    if type(value) is not kind:
        return False
    if isinstance(value, str):
        return value.isprintable()  # PostgreSQL refuses some characters
    return not isinstance(value, int) or abs(value) < 2**53


def _no_cursor(text: str) -> InvalidInput:
    return InvalidInput(
        f"{text[:40]!r} is no cursor of this list.",
        thing="cursor",
        value=text[:40],
        remedy="Give the `next` of the page before, as it is, or none for the first page.",
    )
