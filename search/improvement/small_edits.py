"""Compiled kernel of the small edits that an engineer would try on a strategy that is fast already.

Cuts stay, and owners but for one that moves: it goes where the busiest link is then least busy, so
that owners which are balanced by links stay so. What may not share a message is told apart
afterwards (`constraint_repair.form_groups`).
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.search.improvement.border_edits import divide_message, join_messages, shift_border
from autosync.search.improvement.choice_edits import move_owner, switch_method
from autosync.search.improvement.edited_columns import (
    ROW,
    WORDS,
    Child,
    EditedColumns,
    child_of,
    free_row,
)
from autosync.search.improvement.method_switches import Forms
from autosync.search.improvement.owner_links import OwnerLinks
from autosync.search.improvement.schedule_edits import (
    EXPLICIT,
    IDLE,
    ORDER,
    OVERLAP,
    SLICES,
    edit_place,
    edit_schedule,
)
from autosync.search.sampler.counter_random import draw, stream
from autosync.search.sampler.sampling_tables import Tables
from autosync.simulator.numba_cache import cached_kernel

SMALL_EDITS = 7
"""Purpose of the random stream of a child's small edits."""

PLACE, SHIFT, JOIN, DIVIDE, OWNER, METHOD = range(ORDER + 1, ORDER + 7)
"""Kinds of edits beyond those of a schedule: a message's place in an explicit order; a message's
border by one shard; two messages become one; one becomes two; an owner; a method."""

_ONCE = (SLICES, OVERLAP, IDLE, ORDER, JOIN, DIVIDE)
KIND_OF_EDIT = np.array([*_ONCE, PLACE, PLACE, SHIFT, SHIFT, *(OWNER, METHOD) * 3], dtype=np.int64)
"""One of these at random: more often what has more values."""

ATTEMPTS = 4
"""Kinds that are drawn for an edit until one changes something: many do not apply everywhere."""


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
                word = WORDS * (ATTEMPTS * edit + attempt)
                kind = kinds[draw(name, word, len(kinds))]
                if _edit(tables, links, forms, name, word, kind, columns, child):
                    break
        _close(tables, columns, child)


@njit(nogil=True)
def _close(tables: Tables, columns: EditedColumns, child: Child) -> None:
    """Orders by rule have no positions; pins keep their groups."""
    if columns.order[child.number] != EXPLICIT:
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
        return edit_schedule(tables, forms, name, word, kind, columns, child)
    owned = kind == OWNER
    skip = draw(name, word + ROW, child.stop - child.start)
    row = free_row(tables, skip, owned, columns, child)
    if row < 0:
        return False
    if kind == PLACE:
        return edit_place(tables, name, word, row, columns, child)
    if kind == SHIFT:
        return shift_border(tables, name, word, row, columns, child)
    if kind == JOIN:
        return join_messages(tables, row, columns, child)
    if kind == DIVIDE:
        return divide_message(tables, row, columns, child)
    if kind == OWNER:
        return move_owner(tables, links, name, word, row, columns, child)
    return switch_method(tables, links, forms, name, word, row, columns, child)
