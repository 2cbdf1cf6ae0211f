"""Small edits of owners and methods. Compiled; see `small_edits`."""

import numpy as np
from numba import njit

from autosync.search.improvement.border_edits import join_neighbour
from autosync.search.improvement.edited_columns import (
    HOW,
    SCOPE,
    SERVER_METHOD,
    Child,
    EditedColumns,
)
from autosync.search.improvement.method_switches import Forms, may_take, option_of
from autosync.search.improvement.owner_links import (
    OwnerLinks,
    add_row,
    busy_seconds,
    least_busy_owner,
)
from autosync.search.sampler.counter_random import draw
from autosync.search.sampler.sampling_tables import FIRST_ORDER, Tables

ONE, MESSAGE, ALL_ALIKE = range(3)
"""What changes its owner or method: one shard or variable, a message, all that have its method."""


@njit(nogil=True)
def move_owner(
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
    whole = draw(name, word + SCOPE, 2) == MESSAGE
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
    join_neighbour(tables, row, columns, child)
    return True


@njit(nogil=True)
def switch_method(
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
    scope = draw(name, word + SCOPE, 3)
    variant = draw(name, word + HOW, FIRST_ORDER + tables.rules[0].orders)
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
        join_neighbour(tables, row, columns, child)
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
