"""Compiled kernels that make strategies of others: crossover, mutation, both by spans of the
gradient-ready order.

A child is its base, but for spans of variables that come from a mate (crossover) and for edits
(mutation): a span of choices or one field of the schedule from a freshly drawn strategy, group
borders that go, come or move, owners that are drawn again. A span is 1, 2, 4, ... variables
long, so an edit changes one variable as often as half of the model.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.search.improvement.parent_columns import ParentColumns
from autosync.search.sampler.counter_random import draw, stream
from autosync.search.sampler.drawn_columns import ChoiceColumns, ShardColumns
from autosync.search.sampler.sampling_tables import Tables
from autosync.simulator.numba_cache import cached_kernel

VARIATION = 4
"""Purpose of the random stream of a child's changes."""

CHOICES, SCHEDULE, BORDERS, OWNERS = range(4)
"""Kinds of edits: what they change."""
KIND_OF_EDIT = np.array(
    [CHOICES, CHOICES, CHOICES, SCHEDULE, BORDERS, BORDERS, BORDERS, OWNERS], dtype=np.int64
)
"""One of these at random: choices and borders more often, since they have the most values."""
MERGE, SPLIT, MOVE = range(3)
"""What happens to the group borders of a span."""
ORDER, SLICES, OVERLAP = range(3)
"""Fields of the schedule; when all-gathers leave goes with the overlap that lets them choose."""

_SERVER_METHOD, _EXPLICIT = np.uint8(0), np.uint8(2)
_FIRST_EDIT, _WORDS_PER_EDIT = 8, 8
_SPAN, _HOW, _ROW, _OTHER = 1, 3, 4, 5
"""Words of an edit after its kind; a span takes two."""


class Lineage(NamedTuple):
    """What n children are made of, i64[n] each, as places among the parents' columns.

    base: what they equal where nothing is changed. mate: for crossover, -1 without. donor: the
    fresh strategy that edits take from. edits: how many.
    """

    base: NDArray[np.int64]
    mate: NDArray[np.int64]
    donor: NDArray[np.int64]
    edits: NDArray[np.int64]


@njit(nogil=True)
def draw_span(name: np.uint64, number: int, count: int) -> tuple[int, int]:
    """The first place and the one after the last of a span of `count` places; a length of every
    octave is as likely."""
    octaves = 1
    while (1 << octaves) <= count:
        octaves += 1
    length = min(1 << draw(name, number, octaves), count)
    start = draw(name, number + 1, count - length + 1)
    return start, start + length


@njit(nogil=True)
def kind_of_edit(name: np.uint64, edit: int) -> Any:
    return KIND_OF_EDIT[draw(name, _FIRST_EDIT + _WORDS_PER_EDIT * edit, len(KIND_OF_EDIT))]


@cached_kernel
def choose_sources(
    ready_order: NDArray[np.int64],
    seed: np.uint64,
    indices: NDArray[np.uint64],
    lineage: Lineage,
    source: NDArray[np.int32],
) -> None:
    """Fill `source` i32[n, V]: which strategy each variable of a child comes from."""
    variables = len(ready_order)
    for i in range(len(indices)):
        name = stream(seed, indices[i], VARIATION)
        source[i, :] = lineage.base[i]
        if lineage.mate[i] >= 0:
            start, stop = draw_span(name, 0, variables)
            for place in range(start, stop):
                source[i, ready_order[place]] = lineage.mate[i]
        for edit in range(lineage.edits[i]):
            if kind_of_edit(name, edit) == CHOICES:
                word = _FIRST_EDIT + _WORDS_PER_EDIT * edit + _SPAN
                start, stop = draw_span(name, word, variables)
                for place in range(start, stop):
                    source[i, ready_order[place]] = lineage.donor[i]


@cached_kernel
def fill_offspring(
    tables: Tables,
    seed: np.uint64,
    indices: NDArray[np.uint64],
    lineage: Lineage,
    parents: ParentColumns,
    source: NDArray[np.int32],
    choices: ChoiceColumns,
    shards: ShardColumns,
    starts: NDArray[np.bool_],
    position: NDArray[np.int32],
) -> None:
    """Copy the children's rows and edit schedules, borders and owners. Groups stay open, or without
    adjacent merging become labels, equal where a parent has one group. Owners that are to be drawn
    again stay open (-1), too."""
    adjacent = tables.rules[0].adjacent_merge
    labels = 0 if adjacent else np.int64(parents.group.max()) + 1
    row_of = np.empty(len(tables.variables) + 1, dtype=np.int64)
    for i in range(len(indices)):
        name = stream(seed, indices[i], VARIATION)
        of_child = lineage.base[i], lineage.mate[i], labels
        _copy_rows(tables, of_child, parents, source[i], i, row_of, shards, starts, position)
        for edit in range(lineage.edits[i]):
            word = _FIRST_EDIT + _WORDS_PER_EDIT * edit
            kind = kind_of_edit(name, edit)
            if kind == SCHEDULE:
                field, donor = draw(name, word + _HOW, 3), lineage.donor[i]
                if field == ORDER:
                    choices.order[i] = parents.order[donor]
                elif field == SLICES:
                    choices.slice_bytes[i] = parents.slice_bytes[donor]
                else:
                    choices.overlap[i] = parents.overlap[donor]
                    choices.idle_gather[i] = parents.idle_gather[donor]
            elif kind == BORDERS and adjacent:
                _edit_borders(tables.ready_order, name, word, row_of, starts)
            elif kind == BORDERS:
                _edit_labels(tables, name, word, 3 * labels + edit, row_of, shards)
            elif kind == OWNERS:
                _forget_owners(tables, name, word, row_of, shards)
        _rank_positions(choices.order[i], position[shards.first[i] : shards.first[i + 1]])


@njit(nogil=True)
def _copy_rows(
    tables: Tables,
    of_child: tuple[int, int, int],
    parents: ParentColumns,
    source: NDArray[np.int32],
    child: int,
    row_of: NDArray[np.int64],
    shards: ShardColumns,
    starts: NDArray[np.bool_],
    position: NDArray[np.int32],
) -> None:
    """of_child: its base, its mate, and how many labels a parent has; 0 leaves groups open.
    row_of i64[V + 1]: becomes the first row of each variable of the child. A variable that is
    not the base's is sent where the base sends its first shard."""
    base, mate, labels = of_child
    row = shards.first[child]
    for v in range(len(source)):
        row_of[v] = row
        pin, strange = tables.variables[v].pin, source[v] != base
        given = parents.row_of[source[v], v]
        for part in range(parents.parts[source[v], v]):
            shards.variable[row], shards.length[row] = v, parents.length[given + part]
            shards.method[row] = parents.method[given + part]
            shards.option[row] = parents.option[given + part]
            shards.server[row] = parents.server[given + part]
            shards.group[row] = -1
            if pin >= 0:
                shards.group[row] = tables.pins[pin + part].group
            elif labels > 0:
                origin = (1 if source[v] == mate else 2) if strange else 0
                shards.group[row] = origin * labels + parents.group[given + part]
            starts[row] = parents.starts[given + part]
            sent = parents.row_of[base, v] if strange else given + part
            position[row] = parents.position[sent]
            row += 1
    row_of[len(source)] = row


@njit(nogil=True)
def _edit_borders(
    ready_order: NDArray[np.int64],
    name: np.uint64,
    word: int,
    row_of: NDArray[np.int64],
    starts: NDArray[np.bool_],
) -> None:
    """Remove all group borders of a span, set one somewhere, or move the first one there."""
    how = draw(name, word + _HOW, 3)
    start, stop = draw_span(name, word + _SPAN, len(ready_order))
    rows = 0
    for place in range(start, stop):
        v = ready_order[place]
        for row in range(row_of[v], row_of[v + 1]):
            rows += 1
            if how == MERGE or (how == MOVE and starts[row]):
                starts[row] = False
                if how == MOVE:
                    how = SPLIT
    if how == MERGE:
        return
    chosen = draw(name, word + _ROW, rows)
    for place in range(start, stop):
        v = ready_order[place]
        if chosen < row_of[v + 1] - row_of[v]:
            starts[row_of[v] + chosen] = True
            return
        chosen -= row_of[v + 1] - row_of[v]


@njit(nogil=True)
def _edit_labels(
    tables: Tables,
    name: np.uint64,
    word: int,
    fresh: int,
    row_of: NDArray[np.int64],
    shards: ShardColumns,
) -> None:
    """Give all rows of a span one label, a row of it a fresh one, or that of another row there."""
    how = draw(name, word + _HOW, 3)
    start, stop = draw_span(name, word + _SPAN, len(tables.ready_order))
    rows = 0
    for place in range(start, stop):
        v = tables.ready_order[place]
        if tables.variables[v].pin < 0:
            rows += row_of[v + 1] - row_of[v]
    if rows == 0:
        return
    chosen, other = draw(name, word + _ROW, rows), draw(name, word + _OTHER, rows)
    label = fresh
    for writes in range(2):  # the other row's label is read before any is written
        number = 0
        for place in range(start, stop):
            v = tables.ready_order[place]
            if tables.variables[v].pin >= 0:
                continue
            for row in range(row_of[v], row_of[v + 1]):
                if writes == 0 and how != SPLIT and number == other:
                    label = int(shards.group[row])
                elif writes == 1 and (how == MERGE or number == chosen):
                    shards.group[row] = label
                number += 1


@njit(nogil=True)
def _forget_owners(
    tables: Tables, name: np.uint64, word: int, row_of: NDArray[np.int64], shards: ShardColumns
) -> None:
    start, stop = draw_span(name, word + _SPAN, len(tables.ready_order))
    for place in range(start, stop):
        v = tables.ready_order[place]
        if tables.variables[v].pin >= 0:
            continue
        for row in range(row_of[v], row_of[v + 1]):
            if shards.method[row] == _SERVER_METHOD:
                shards.server[row] = -1


@njit(nogil=True)
def _rank_positions(order: int, position: NDArray[np.int32]) -> None:
    """Places in an explicit order become 0, 1, 2, ..., ties by row; other orders have none."""
    if order == _EXPLICIT:
        for rank, row in enumerate(np.argsort(position, kind="mergesort")):
            position[row] = rank
    else:
        position[:] = 0
