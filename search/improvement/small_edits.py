"""Compiled kernel of the small edits that an engineer would try on a strategy that is fast already.

Cuts stay, and owners but for one that moves: it goes where the busiest link is then least busy, so
that owners which are balanced by links stay so. What may not share a message is told apart
afterwards (`constraint_repair.form_groups`).
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.search.improvement.edited_columns import (
    Child,
    EditedColumns,
    beside,
    child_of,
    fresh_label,
    is_pinned,
    relabel,
)
from autosync.search.improvement.method_switches import Forms, may_take, option_of
from autosync.search.improvement.owner_links import (
    SERVER_METHOD,
    OwnerLinks,
    add_row,
    busy_seconds,
    least_busy_owner,
)
from autosync.search.sampler.counter_random import draw, stream
from autosync.search.sampler.sampling_tables import FIRST_ORDER, Tables
from autosync.simulator.numba_cache import cached_kernel

SMALL_EDITS = 7
"""Purpose of the random stream of a child's small edits."""

SLICES, OVERLAP, IDLE, ORDER, PLACE, SHIFT, JOIN, DIVIDE, OWNER, METHOD = range(10)
"""Kinds of edits: the slices' size; whether messages may run into the next forward pass; whether
gathers leave while the wire is idle; the order's rule; a message's place in an explicit order; a
message's border by one shard; two messages become one; one becomes two; an owner; a method."""

_ONCE = (SLICES, OVERLAP, IDLE, ORDER, JOIN, DIVIDE)
KIND_OF_EDIT = np.array([*_ONCE, PLACE, PLACE, SHIFT, SHIFT, *(OWNER, METHOD) * 3], dtype=np.int64)
"""One of these at random: more often what has more values."""

ATTEMPTS = 4
"""Kinds that are drawn for an edit until one changes something: many do not apply everywhere."""

ONE, MESSAGE, ALL_ALIKE = range(3)
"""What changes its owner or method: one shard or variable, a message, all that have its method."""

_SCATTER_METHOD = np.uint8(2)
_FIFO, _PRIORITY, _EXPLICIT = np.uint8(0), np.uint8(1), np.uint8(2)
_WORDS = 8
_ROW, _HOW, _OTHER, _SCOPE = 1, 2, 3, 4
"""Words of an attempt after its kind."""


@cached_kernel
def edit_slightly(
    tables: Tables,
    links: OwnerLinks,
    forms: Forms,
    seed: np.uint64,
    indices: NDArray[np.uint64],
    edits: NDArray[np.int64],
    kinds: NDArray[np.int64],
    columns: EditedColumns,
) -> None:
    """Change each child in place by `edits` i64[n] small edits, each of one of `kinds` i64[] at
    random. Groups become labels; pinned rows get those of their pins."""
    for i in range(len(indices)):
        child, name = child_of(tables, columns, i), stream(seed, indices[i], SMALL_EDITS)
        for edit in range(edits[i]):
            for attempt in range(ATTEMPTS):
                word = _WORDS * (ATTEMPTS * edit + attempt)
                kind = kinds[draw(name, word, len(kinds))]
                if _edit(tables, links, forms, name, word, kind, columns, child):
                    break
        _close(tables, columns, child)


@njit(nogil=True)
def _close(tables: Tables, columns: EditedColumns, child: Child) -> None:
    """Orders by rule have no positions; pins keep their groups."""
    if columns.order[child.number] != _EXPLICIT:
        columns.position[child.start : child.stop] = 0
    row = child.start
    for v in range(len(tables.variables)):
        pin = tables.variables[v].pin
        for part in range(columns.parts[child.number, v]):
            if pin >= 0:
                columns.group[row] = tables.pins[pin + part].group
            row += 1


@njit(nogil=True)
def _edit(
    tables: Tables,
    links: OwnerLinks,
    forms: Forms,
    name: np.uint64,
    word: int,
    kind: int,
    columns: EditedColumns,
    child: Child,
) -> Any:
    """One attempt; whether it changed anything."""
    if kind <= ORDER:
        return _edit_schedule(tables, forms, name, word, kind, columns, child)
    owned = kind == OWNER
    row = _free_row(
        tables, draw(name, word + _ROW, child.stop - child.start), owned, columns, child
    )
    if row < 0:
        return False
    if kind == PLACE:
        return _edit_place(tables, name, word, row, columns, child)
    if kind == SHIFT:
        return _shift_border(tables, name, word, row, columns, child)
    if kind == JOIN:
        return _join_messages(tables, row, columns, child)
    if kind == DIVIDE:
        return _divide_message(tables, row, columns, child)
    if kind == OWNER:
        return _move_owner(tables, links, name, word, row, columns, child)
    return _switch_method(tables, links, forms, name, word, row, columns, child)


@njit(nogil=True)
def _free_row(tables: Tables, skip: int, owned: bool, columns: EditedColumns, child: Child) -> int:
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
def _edit_schedule(
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
        chosen = draw(name, word + _HOW, len(sizes))
        if sizes[chosen] == columns.slice_bytes[i]:
            chosen = (chosen + 1) % len(sizes)
        before = columns.slice_bytes[i]
        columns.slice_bytes[i] = sizes[chosen]
        return bool(before != sizes[chosen])
    if kind == ORDER:
        to_fifo = columns.order[i] == _PRIORITY
        if columns.order[i] == _EXPLICIT:
            to_fifo = draw(name, word + _HOW, 2) == 0
        if not (to_fifo or rules.priority):
            return False
        columns.order[i] = _FIFO if to_fifo else _PRIORITY
        return True
    if columns.staleness[i] > 0:
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
def _edit_place(
    tables: Tables, name: np.uint64, word: int, row: int, columns: EditedColumns, child: Child
) -> bool:
    """Send a message right before another. First come, first served becomes explicit by that."""
    i = child.number
    if not tables.rules[0].priority or columns.order[i] not in (_FIFO, _EXPLICIT):
        return False
    skip = draw(name, word + _OTHER, child.stop - child.start)
    other = _free_row(tables, skip, False, columns, child)
    moved, before = columns.group[row], columns.group[other]
    if moved == before:
        return False
    if columns.order[i] == _FIFO:
        columns.order[i] = _EXPLICIT
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
def _shift_border(
    tables: Tables, name: np.uint64, word: int, row: int, columns: EditedColumns, child: Child
) -> bool:
    """Give a row at the border of its message to the neighbouring one."""
    step = 2 * draw(name, word + _HOW, 2) - 1
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
def _join_messages(tables: Tables, row: int, columns: EditedColumns, child: Child) -> bool:
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
def _divide_message(tables: Tables, row: int, columns: EditedColumns, child: Child) -> bool:
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
def _move_owner(
    tables: Tables,
    links: OwnerLinks,
    name: np.uint64,
    word: int,
    row: int,
    columns: EditedColumns,
    child: Child,
) -> bool:
    """Of a shard, or of all of its message: another one that leaves the busiest link least busy."""
    if len(tables.weight) < 2:
        return False
    old, label = columns.server[row], columns.group[row]
    whole = draw(name, word + _SCOPE, 2) == MESSAGE
    for each in range(child.start, child.stop):
        own = columns.group[each] == label and columns.server[each] == old
        child.scope[each - child.start] = own if whole else each == row
        if child.scope[each - child.start]:
            columns.server[each] = -1
    busy = busy_seconds(tables, links, columns, child)
    moved = child.start + np.flatnonzero(child.scope)
    owner = least_busy_owner(tables, links, columns, child.number, moved, busy, old)
    for each in range(child.start, child.stop):
        if child.scope[each - child.start]:
            columns.server[each] = owner
    _join_neighbour(tables, row, columns, child)
    return True


@njit(nogil=True)
def _join_neighbour(tables: Tables, row: int, columns: EditedColumns, child: Child) -> None:
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


@njit(nogil=True)
def _switch_method(
    tables: Tables,
    links: OwnerLinks,
    forms: Forms,
    name: np.uint64,
    word: int,
    row: int,
    columns: EditedColumns,
    child: Child,
) -> bool:
    """A variable, all variables of a message, or all that have its method take another one: those
    that may. Their new owners leave the busiest link least busy."""
    scope = draw(name, word + _SCOPE, 3)
    variant = draw(name, word + _HOW, FIRST_ORDER + tables.rules[0].orders)
    changed = _mark_switching(tables, forms, scope, variant, row, columns, child)
    if not changed:
        return False
    for each in range(child.start, child.stop):
        if not child.scope[each - child.start]:
            continue
        variable = tables.variables[columns.variable[each]]
        method, option = option_of(tables, forms, variable, columns.option[each], variant)
        columns.method[each], columns.option[each] = method, option
        if method != SERVER_METHOD:
            columns.server[each] = -1
    _own_ownerless(tables, links, columns, child)
    if scope == ONE:
        _join_neighbour(tables, row, columns, child)
    return True


@njit(nogil=True)
def _mark_switching(
    tables: Tables,
    forms: Forms,
    scope: int,
    variant: int,
    row: int,
    columns: EditedColumns,
    child: Child,
) -> bool:
    """Mark all rows of the variables that switch; whether any does."""
    own_method, own_option = columns.method[row], columns.option[row]
    own_group, own_variable = columns.group[row], columns.variable[row]
    first, changed = child.start, False
    child.scope[:] = False
    for v in range(len(tables.variables)):
        parts = columns.parts[child.number, v]
        stop = first + parts
        chosen = False
        for each in range(first, stop):
            alike = columns.method[each] == own_method and columns.option[each] == own_option
            in_message = columns.group[each] == own_group
            chosen = chosen or (
                v == own_variable
                or (scope == MESSAGE and in_message)
                or (scope == ALL_ALIKE and alike)
            )
        variable = tables.variables[v]
        free = variable.pin < 0 and may_take(tables.rules[0], variable, parts, variant)
        if chosen and free:
            method, option = option_of(tables, forms, variable, columns.option[first], variant)
            if method != columns.method[first] or option != columns.option[first]:
                child.scope[first - child.start : stop - child.start] = True
                changed = True
        first = stop
    return changed


@njit(nogil=True)
def _own_ownerless(tables: Tables, links: OwnerLinks, columns: EditedColumns, child: Child) -> None:
    """One row after another."""
    busy = busy_seconds(tables, links, columns, child)
    for row in range(child.start, child.stop):
        if columns.method[row] == SERVER_METHOD and columns.server[row] < 0:
            alone = np.array([row])
            owner = least_busy_owner(tables, links, columns, child.number, alone, busy, -1)
            columns.server[row] = owner
            add_row(tables, links, columns, child.number, row, owner, busy)
