"""Orders of lists: which sorts there are, and pages of a list in one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import SQLColumnExpression, func, tuple_
from sqlalchemy.orm import Session

from autosync.api.views.cursors import one_page, read_cursor
from autosync.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class SortKey:
    """column: what rows are sorted by. kind: of its values. nullable: rows without one come last,
    whichever way the list is sorted. unique: no two rows are alike, so that nothing breaks ties."""

    column: SQLColumnExpression[Any]
    kind: type = float
    nullable: bool = False
    unique: bool = False


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
