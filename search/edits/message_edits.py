"""Small edits of what shares a message, and of the schedule; then groups are formed anew. Compiled;
see `small_edits`.

Under adjacent merging groups are formed from borders, so that each is contiguous in gradient-ready
order; without it groups are those of the strategies that the shards come from.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

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
from autosync.search.sampler.adjacent_merge import METHODS, first_rows, renumber_groups
from autosync.search.sampler.counter_random import draw
from autosync.search.sampler.sampling_tables import Record, ShardColumns, Tables
from autosync.simulator.numba_cache import cached_kernel

SLICES, OVERLAP, IDLE, ORDER = range(4)
"""Kinds of edits: the slices' size; whether messages may run into the next forward pass; whether
all-gathers start while the link is idle; the order's rule."""

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


@njit(nogil=True)
def row_class(method: int, option: int, server: int, dtype: int, options: int, dtypes: int) -> Any:
    """Which rows may share a message: those of one number."""
    return ((np.int64(server + 1) * METHODS + method) * options + option) * dtypes + dtype


@cached_kernel
def group_borders(
    tables: Tables,
    options: int,
    owners: int,
    parts: NDArray[np.int32],
    shards: ShardColumns,
    starts: NDArray[np.bool_],
) -> None:
    """Fill `starts` bool[N]: whether a row begins a group, among rows that may share one, in
    gradient-ready order. Pinned rows keep the groups of their pins.

    options, owners: how many there are; owners count from 0. parts i32[n, V]: shards of each
    variable.
    """
    dtypes = tables.rules[0].dtypes
    last = np.full((owners + 1) * METHODS * options * dtypes, -1, dtype=np.int64)
    open_in = np.full(len(last), -1, dtype=np.int64)
    row_of = np.empty(len(tables.variables) + 1, dtype=np.int64)
    for i in range(len(parts)):
        first_rows(shards.first[i], parts[i], row_of)
        for v in tables.ready_order:
            variable = tables.variables[v]
            if variable.pin >= 0:
                continue
            for row in range(row_of[v], row_of[v + 1]):
                number = _class_of(shards, row, variable, options, tables.rules[0])
                starts[row] = open_in[number] != i or last[number] != shards.group[row]
                open_in[number], last[number] = i, shards.group[row]


@cached_kernel
def form_groups(
    tables: Tables,
    options: int,
    owners: int,
    parts: NDArray[np.int32],
    starts: NDArray[np.bool_],
    most: NDArray[np.int64],
    shards: ShardColumns,
) -> None:
    """Number the groups of all unpinned shards from the borders `starts` bool[N], or without the
    constraint from their labels, the groups so far.

    most i64[n]: groups of the collectives, and of each server, at most; then borders and labels are
    passed over, but for the first of each kind of message.
    """
    if not tables.rules[0].adjacent_merge:
        _join_labels(tables, options, owners, parts, most, shards)
        return
    rules, families = tables.rules[0], owners + 1
    classes = families * METHODS * options * rules.dtypes
    current, open_in = np.empty(classes, np.int64), np.full(classes, -1, np.int64)
    used = np.empty(families, np.int64)
    row_of = np.empty(len(tables.variables) + 1, dtype=np.int64)
    for i in range(len(parts)):
        used[:] = 0
        first_rows(shards.first[i], parts[i], row_of)
        groups: int = rules.pin_groups
        for v in tables.ready_order:
            if tables.variables[v].pin >= 0:
                continue
            for row in range(row_of[v], row_of[v + 1]):
                number = _class_of(shards, row, tables.variables[v], options, rules)
                family = shards.server[row] + 1
                if open_in[number] != i or (starts[row] and used[family] < most[i]):
                    open_in[number], current[number] = i, groups
                    groups += 1
                    used[family] += 1
                shards.group[row] = current[number]
        renumber_groups(shards.group[row_of[0] : row_of[-1]], groups)


@njit(nogil=True)
def _join_labels(
    tables: Tables,
    options: int,
    owners: int,
    parts: NDArray[np.int32],
    most: NDArray[np.int64],
    shards: ShardColumns,
) -> None:
    """Shards of one label and kind travel together; of a label that has another kind, or comes when
    there are enough groups, with the latest group of their own kind."""
    rules, families = tables.rules[0], owners + 1
    classes = families * METHODS * options * rules.dtypes
    latest, open_in = np.empty(classes, np.int64), np.full(classes, -1, np.int64)
    labels = np.int64(shards.group.max()) + 1 if len(shards.group) else 0
    group_of, kind_of = np.empty(labels, np.int64), np.full(labels, -1, np.int64)
    used = np.empty(families, np.int64)
    for i in range(len(parts)):
        used[:] = 0
        kind_of[:] = -1
        groups: int = rules.pin_groups
        for row in range(shards.first[i], shards.first[i + 1]):
            variable = tables.variables[shards.variable[row]]
            if variable.pin >= 0:
                continue
            number = _class_of(shards, row, variable, options, rules)
            family, label = shards.server[row] + 1, shards.group[row]
            if kind_of[label] != number:
                full = used[family] >= most[i] or kind_of[label] >= 0
                if open_in[number] != i or not full:
                    open_in[number], latest[number] = i, groups
                    groups += 1
                    used[family] += 1
                if kind_of[label] < 0:
                    kind_of[label], group_of[label] = number, latest[number]
            shards.group[row] = group_of[label] if kind_of[label] == number else latest[number]
        renumber_groups(shards.group[shards.first[i] : shards.first[i + 1]], groups)


@njit(nogil=True)
def _class_of(shards: ShardColumns, row: int, variable: Record, options: int, rules: Record) -> int:
    number: int = row_class(
        shards.method[row],
        shards.option[row],
        shards.server[row],
        variable.dtype,
        options,
        rules.dtypes,
    )
    return number
