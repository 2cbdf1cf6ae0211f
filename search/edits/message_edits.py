"""Small edits of what shares a message, and of the schedule. Compiled; see `small_edits`."""

import numpy as np
from numba import njit

from autosync.search.edits.edited_columns import (
    HOW,
    OTHER,
    SERVER_METHOD,
    Child,
    EditedColumns,
    beside,
    free_row,
    fresh_label,
    relabel,
)
from autosync.search.edits.method_edits import Forms
from autosync.search.sampler.counter_random import draw
from autosync.search.sampler.sampling_tables import Tables

SLICES, OVERLAP, IDLE, ORDER = range(4)
"""Kinds of edits: the slices' size; whether messages may run into the next forward pass; whether
gathers leave while the wire is idle; the order's rule."""

FIFO, PRIORITY, EXPLICIT = np.uint8(0), np.uint8(1), np.uint8(2)
_SCATTER_METHOD = np.uint8(2)


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
def edit_schedule(
    tables: Tables,
    forms: Forms,
    name: np.uint64,
    word: int,
    kind: int,
    columns: EditedColumns,
    child: Child,
) -> bool:
    i, rules = child.number, tables.rules[0]
    if kind == SLICES:
        sizes = tables.slice_bytes
        chosen = draw(name, word + HOW, len(sizes))
        if sizes[chosen] == columns.slice_bytes[i]:
            chosen = (chosen + 1) % len(sizes)
        before = columns.slice_bytes[i]
        columns.slice_bytes[i] = sizes[chosen]
        return bool(before != sizes[chosen])
    if kind == ORDER:
        to_fifo = columns.order[i] == PRIORITY
        if columns.order[i] == EXPLICIT:
            to_fifo = draw(name, word + HOW, 2) == 0
        if not (to_fifo or rules.priority):
            return False
        columns.order[i] = FIFO if to_fifo else PRIORITY
        return True
    if columns.extension[i] > 0:
        return False
    if kind == OVERLAP:
        if not (columns.overlap[i] or rules.overlap):
            return False
        columns.overlap[i] = not columns.overlap[i]
        columns.idle_gather[i] = False
        return True
    if not columns.overlap[i]:
        return False
    if not (columns.idle_gather[i] or rules.idle_gathers or _returns_alone(forms, columns, child)):
        return False
    columns.idle_gather[i] = not columns.idle_gather[i]
    return True


@njit(nogil=True)
def _returns_alone(forms: Forms, columns: EditedColumns, child: Child) -> bool:
    """Whether owners return gradients and nothing else is gathered, as the sampler asks."""
    returned = False
    for row in range(child.start, child.stop):
        if columns.method[row] == _SCATTER_METHOD:
            return False
        if columns.method[row] == SERVER_METHOD and forms.returns[columns.option[row]]:
            returned = True
    return returned


@njit(nogil=True)
def edit_place(
    tables: Tables, name: np.uint64, word: int, row: int, columns: EditedColumns, child: Child
) -> bool:
    """Send a message right before another. First come, first served becomes explicit by that."""
    i = child.number
    if not tables.rules[0].priority or columns.order[i] not in (FIFO, EXPLICIT):
        return False
    skip = draw(name, word + OTHER, child.stop - child.start)
    other = free_row(tables, skip, False, columns, child)
    moved, before = columns.group[row], columns.group[other]
    if moved == before:
        return False
    if columns.order[i] == FIFO:
        columns.order[i] = EXPLICIT
        for place in range(len(child.ready_rows)):
            columns.position[child.ready_rows[place]] = place
    earliest = columns.position[other]
    for each in range(child.start, child.stop):
        if columns.group[each] == before:
            earliest = min(earliest, columns.position[each])
    position = columns.position[child.start : child.stop]
    group = columns.group[child.start : child.stop]
    for each in range(len(position)):
        position[each] = 2 * earliest if group[each] == moved else 2 * position[each] + 1
    sorted_rows = np.argsort(position, kind="mergesort")
    for rank in range(len(sorted_rows)):
        position[sorted_rows[rank]] = rank
    return True
