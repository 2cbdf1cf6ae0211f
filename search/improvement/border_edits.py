"""Small edits of which shards share a message. Compiled; see `small_edits`."""

import numpy as np
from numba import njit

from autosync.search.improvement.edited_columns import (
    HOW,
    Child,
    EditedColumns,
    beside,
    fresh_label,
    relabel,
)
from autosync.search.sampler.counter_random import draw
from autosync.search.sampler.sampling_tables import Tables


@njit(nogil=True)
def shift_border(
    tables: Tables, name: np.uint64, word: int, row: int, columns: EditedColumns, child: Child
) -> bool:
    """Give a row at the border of its message to the neighbouring one."""
    step = 2 * draw(name, word + HOW, 2) - 1
    own = columns.group[row]
    while True:  # towards the border
        other = beside(tables, columns, child, row, step)
        if other < 0:
            return False
        if columns.group[other] != own:
            columns.group[row] = columns.group[other]
            return True
        row = other


@njit(nogil=True)
def join_messages(tables: Tables, row: int, columns: EditedColumns, child: Child) -> bool:
    """The row's message becomes one with that behind it."""
    own = columns.group[row]
    other = row
    while other >= 0 and columns.group[other] == own:
        other = beside(tables, columns, child, other, 1)
    if other < 0:
        return False
    relabel(columns, child, columns.group[other], own)
    return True


@njit(nogil=True)
def divide_message(tables: Tables, row: int, columns: EditedColumns, child: Child) -> bool:
    """A message begins at the row, where it was inside one."""
    own, before = columns.group[row], beside(tables, columns, child, row, -1)
    if before < 0 or columns.group[before] != own:
        return False
    fresh, reached = fresh_label(columns, child), False
    for each in child.ready_rows:
        reached = reached or each == row
        if reached and columns.group[each] == own:
            columns.group[each] = fresh
    return True


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
