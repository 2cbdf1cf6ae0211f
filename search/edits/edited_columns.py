"""Children while small edits change them, and which of their rows an edit is about."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.population import Population
from autosync.search.sampler.adjacent_merge import first_rows
from autosync.search.sampler.sampling_tables import Tables

SERVER_METHOD = np.uint8(0)

WORDS = 8
ROW, HOW, OTHER, SCOPE = 1, 2, 3, 4
"""How many random words an attempt at an edit has, and what they choose: a row, how it changes,
another row, how much changes. Word 0 chooses the kind."""


class EditedColumns(NamedTuple):
    """n children over V variables, N rows in all; columns are those of `Population`. Groups are
    labels: equal where rows may share a message, but not numbered from 0."""

    first: NDArray[np.int64]
    order: NDArray[np.uint8]
    slice_bytes: NDArray[np.int64]
    overlap: NDArray[np.bool_]
    idle_gather: NDArray[np.bool_]
    extension: NDArray[np.uint16]
    axis: NDArray[np.int8]
    parts: NDArray[np.int32]
    variable: NDArray[np.uint16]
    length: NDArray[np.int64]
    method: NDArray[np.uint8]
    server: NDArray[np.int16]
    group: NDArray[np.int32]
    option: NDArray[np.uint16]
    position: NDArray[np.int32]


class Child(NamedTuple):
    """One of them. start, stop: its rows. ready_rows i64[rows]: these in gradient-ready order.
    scope bool[rows]: those that an edit is about; scratch."""

    number: int
    start: int
    stop: int
    ready_rows: NDArray[np.int64]
    scope: NDArray[np.bool_]


def columns_of(population: Population) -> EditedColumns:
    """The population's own arrays, which edits change."""
    return EditedColumns(*(getattr(population, name) for name in EditedColumns._fields))


@njit(nogil=True)
def child_of(tables: Tables, columns: EditedColumns, number: int) -> Child:
    start, stop = columns.first[number], columns.first[number + 1]
    row_of = np.empty(len(tables.variables) + 1, dtype=np.int64)
    first_rows(start, columns.parts[number], row_of)
    ready_rows = np.empty(stop - start, dtype=np.int64)
    place = 0
    for v in tables.ready_order:
        for row in range(row_of[v], row_of[v + 1]):
            ready_rows[place] = row
            place += 1
    return Child(number, start, stop, ready_rows, np.zeros(stop - start, dtype=np.bool_))


@njit(nogil=True)
def is_pinned(tables: Tables, columns: EditedColumns, row: int) -> bool:
    return bool(tables.variables[columns.variable[row]].pin >= 0)


@njit(nogil=True)
def free_row(tables: Tables, skip: int, owned: bool, columns: EditedColumns, child: Child) -> int:
    """The first row from number `skip` on, around, that is not pinned (and has an owner); -1
    without one."""
    count = child.stop - child.start
    for step in range(count):
        row: int = child.start + (skip + step) % count
        wanted = not owned or columns.method[row] == SERVER_METHOD
        if wanted and not is_pinned(tables, columns, row):
            return row
    return -1


@njit(nogil=True)
def may_share(tables: Tables, columns: EditedColumns, one: int, other: int) -> bool:
    """Whether two rows may share a message: of one method, option, owner and type."""
    first, second = (
        tables.variables[columns.variable[one]],
        tables.variables[columns.variable[other]],
    )
    alike = columns.method[one] == columns.method[other]
    alike = alike and columns.option[one] == columns.option[other]
    return bool(
        alike and columns.server[one] == columns.server[other] and first.dtype == second.dtype
    )


@njit(nogil=True)
def beside(tables: Tables, columns: EditedColumns, child: Child, row: int, step: int) -> int:
    """The next free row in gradient-ready order that may share a message with it, forwards (step 1)
    or backwards (-1); -1 without one."""
    count = len(child.ready_rows)
    place = 0
    while child.ready_rows[place] != row:
        place += 1
    place += step
    while 0 <= place < count:
        other = child.ready_rows[place]
        if not is_pinned(tables, columns, other) and may_share(tables, columns, row, other):
            found: int = other
            return found
        place += step
    return -1


@njit(nogil=True)
def fresh_label(columns: EditedColumns, child: Child) -> int:
    return int(columns.group[child.start : child.stop].max()) + 1


@njit(nogil=True)
def relabel(columns: EditedColumns, child: Child, old: int, new: int) -> None:
    for row in range(child.start, child.stop):
        if columns.group[row] == old:
            columns.group[row] = new


@njit(nogil=True)
def join_neighbour(tables: Tables, row: int, columns: EditedColumns, child: Child) -> None:
    """A row, or all rows of its message that had its owner, in the message of its new kind that
    comes before, or behind where none does; without any in its own."""
    other = beside(tables, columns, child, row, -1)
    if other < 0 or child.scope[other - child.start]:
        other = beside(tables, columns, child, row, 1)
    label = fresh_label(columns, child)
    if other >= 0 and not child.scope[other - child.start]:
        label = int(columns.group[other])
    for each in range(child.start, child.stop):
        if child.scope[each - child.start]:
            columns.group[each] = label
