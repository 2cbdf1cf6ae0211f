"""Cursors: where a page of a list ended, so that the next one goes on there.

A cursor holds the sort key of the last row, not how many came before it: rows that are added
meanwhile shift nothing, and a page far down costs no more than the first.
"""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from autosync.errors import InvalidInput

Row = TypeVar("Row")
LONGEST_CURSOR = 500
"""Characters; keys are an id, a name and a few numbers."""


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
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


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
