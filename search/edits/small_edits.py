"""Strategies changed by small edits, such as an engineer would try on one that is already fast.

An edit keeps all cuts, and all owners but one: that owner moves to where the busiest link is then
least busy, so owners that are balanced by links stay balanced. Afterwards `form_groups` separates
shards that may not share a message.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population
from autosync.search.domain_facts import OwnerLinks, owner_links
from autosync.search.edits.edited_columns import (
    ROW,
    WORDS,
    Child,
    EditedColumns,
    child_of,
    columns_of,
    free_row,
)
from autosync.search.edits.message_edits import (
    EXPLICIT,
    IDLE,
    ORDER,
    OVERLAP,
    SLICES,
    divide_message,
    edit_place,
    edit_schedule,
    form_groups,
    group_borders,
    join_messages,
    shift_border,
)
from autosync.search.edits.method_edits import (
    Forms,
    forms_among,
    move_owner,
    switch_method,
)
from autosync.search.extension_proposals import kept_extensions
from autosync.search.sampler.counter_random import draw, stream
from autosync.search.sampler.sampling_tables import (
    SamplerInputs,
    ShardColumns,
    Tables,
    sampler_inputs,
)
from autosync.search.space import Space
from autosync.simulator.numba_cache import cached_kernel

I64 = NDArray[np.int64]

SMALL_EDITS = 7
"""Purpose of the random stream of a child's small edits."""

PLACE, SHIFT, JOIN, DIVIDE, OWNER, METHOD = range(ORDER + 1, ORDER + 7)
"""Kinds of edits beyond those of a schedule: a message's place in an explicit order; a message's
border by one shard; two messages become one; one becomes two; an owner; a method."""

_ONCE = (SLICES, OVERLAP, IDLE, ORDER, JOIN, DIVIDE)
ALL_KINDS = np.array([*_ONCE, PLACE, PLACE, SHIFT, SHIFT, *(OWNER, METHOD) * 3], dtype=np.int64)
"""One of these at random: more often what has more values."""
MESSAGE_KINDS = np.array([SLICES, OVERLAP, ORDER, PLACE, *(JOIN, DIVIDE, SHIFT) * 2])
"""Those that leave methods and owners as they are."""

ATTEMPTS = 4
"""Kinds that are drawn for an edit until one changes something: many do not apply everywhere."""


@dataclass(frozen=True, slots=True)
class Parents:
    """population: strategies that others are made of, with all options that may be drawn. groups
    i64[n]: how many groups each has. owners: of messages, ranks and hosts beside them."""

    domain: Domain
    population: Population
    inputs: SamplerInputs
    groups: I64
    owners: int

    def __len__(self) -> int:
        return len(self.population)


def parents_of(domain: Domain, space: Space, population: Population) -> Parents:
    """population: runs on the engine of the plans, not on one of torch's."""
    inputs = sampler_inputs(domain, space)
    numbers = dict.fromkeys((*population.options, *inputs.options))
    population = replace(population, options=tuple(numbers))
    groups = np.maximum.reduceat(population.group, population.first[:-1]).astype(np.int64) + 1
    return Parents(domain, population, inputs, groups, domain.cluster.servers)


def make_edited(
    parents: Parents, base: I64, edits: I64, start: int, seed: int, kinds: I64 = ALL_KINDS
) -> Population:
    """Copies of the parents `base` i64[n], each after so many small edits. Child i depends only on
    these and on (seed, start + i). Releases the GIL while it works.

    Pins, cuts, and the groups' constraint are kept; owners stay where they are, but for those that
    an edit moves.
    """
    tables, n = parents.inputs.tables, len(base)
    made = parents.population.take(base)
    indices = np.arange(start, start + n, dtype=np.uint64)
    links, forms = owner_links(parents.domain), forms_among(made.options, parents.inputs)
    edit_slightly(tables, links, forms, np.uint64(seed), indices, edits, kinds, columns_of(made))
    shards = ShardColumns(*(getattr(made, name) for name in ShardColumns._fields))
    starts = np.zeros(made.rows, dtype=np.bool_)
    counts = len(made.options), parents.owners
    group_borders(tables, *counts, made.parts, shards, starts)
    most = np.maximum(parents.groups[base] + edits, tables.rules[0]["max_groups"])
    form_groups(tables, *counts, made.parts, starts, most, shards)
    return replace(made, extension=kept_extensions(made))


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
