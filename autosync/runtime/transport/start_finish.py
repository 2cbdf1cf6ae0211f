"""The two halves of every operation: `Start` issues it and returns `Finish`, which waits for it."""

from collections.abc import Callable

Finish = Callable[[], None]
"""Blocks until a started operation has its result in place; on a GPU, until what puts it there
has been asked of the current stream."""

Start = Callable[[], Finish]
"""Issues an operation."""


def nothing_to_finish() -> None:
    """The finish of an operation that the current stream itself waits for, or that is none."""
