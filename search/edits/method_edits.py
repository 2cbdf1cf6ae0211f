"""Small edits of methods and owners. Compiled; see `small_edits`.

A variable may switch to another method where its cut stays. An owner that moves goes where the
busiest link is then least busy; the design `ps_least_busy_link` says why.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.population import Option
from autosync.search.domain_facts import OwnerLinks
from autosync.search.edits.edited_columns import (
    HOW,
    SCOPE,
    SERVER_METHOD,
    Child,
    EditedColumns,
    join_neighbour,
)
from autosync.search.sampler.counter_random import draw
from autosync.search.sampler.draw_kernels import choose_encoding
from autosync.search.sampler.sampling_tables import (
    FACTORS,
    FIRST_ORDER,
    GATHER,
    HIERARCHICAL,
    OWNER_HIERARCHICAL,
    OWNER_HIERARCHICAL_RETURNS_GRADIENTS,
    SCATTER,
    SCATTER_SHARDED,
    Record,
    SamplerInputs,
    Tables,
)
from autosync.strategy import EXACT

ONE, MESSAGE, ALL_ALIKE = range(3)
"""What changes its owner or method: one shard or variable, a message, all that have its method."""


class Forms(NamedTuple):
    """Options by their numbers in a population of parents, of which there are O.

    option i64[]: of `variant * E + encoding`. encoding i64[O]: of each option, as the tables number
    them (0 of those that the space does not have). returns bool[O]: gradients, by owners.
    """

    option: NDArray[np.int64]
    encoding: NDArray[np.int64]
    returns: NDArray[np.bool_]


def forms_among(options: tuple[Option, ...], inputs: SamplerInputs) -> Forms:
    """options: of the population, which has all that the sampler can draw."""
    encodings = (EXACT, *(o.encoding for o in inputs.options if o.encoding != EXACT))
    known = {each: number for number, each in enumerate(dict.fromkeys(encodings))}
    numbers = {option: number for number, option in enumerate(options)}
    drawn = inputs.tables.synchronizers["option"]
    return Forms(
        np.array([numbers[inputs.options[each]] for each in drawn], dtype=np.int64),
        np.array([known.get(option.encoding, 0) for option in options], dtype=np.int64),
        np.array([option.returns_gradients for option in options]),
    )


@njit(nogil=True)
def may_take(rules: Record, variable: Record, parts: int, variant: int) -> bool:
    """Whether a variable of so many shards may be synchronized so."""
    owned = variant <= OWNER_HIERARCHICAL
    summed = FACTORS < variant <= OWNER_HIERARCHICAL_RETURNS_GRADIENTS
    if (owned or variant == SCATTER_SHARDED) and not rules.elementwise:
        return False
    if (
        variant in (OWNER_HIERARCHICAL, HIERARCHICAL, OWNER_HIERARCHICAL_RETURNS_GRADIENTS)
        and not rules.hierarchy
    ):
        return False
    if owned or summed:
        return bool(rules.owners) and not (summed and variable.sparse)
    if variable.sparse or variant == GATHER:
        return bool(variable.sparse) and variant == GATHER and parts == 1
    if variant == FACTORS:
        return bool(variable.factorable) and parts == 1
    if variant in (SCATTER, SCATTER_SHARDED):
        return bool(rules.scatters)
    if variant >= FIRST_ORDER + rules.orders:
        return False
    return bool(rules.reduces)


@njit(nogil=True)
def option_of(
    tables: Tables, forms: Forms, variable: Record, option: int, variant: int
) -> tuple[Any, Any]:
    """Method and option of a variant for a variable that keeps its encoding where it applies."""
    encodings = len(tables.low_rank)
    encoding = choose_encoding(variable, forms.encoding[option], tables.low_rank, variant)
    place = variant * encodings + encoding
    return tables.synchronizers[place].method, forms.option[place]


@njit(nogil=True)
def bytes_of_row(
    tables: Tables, links: OwnerLinks, columns: EditedColumns, number: int, row: int
) -> tuple[Any, Any, Any]:
    """What a row of child `number` sends to its owner and fetches from it, and whether its variable
    is sparse (0 or 1)."""
    v = np.int64(columns.variable[row])
    variable, axis = tables.variables[v], columns.axis[number, v]
    share = columns.length[row] / (variable.elements if axis < 0 else variable.dims[axis])
    return share * links.sent[v], share * links.pulled[v], np.int64(variable.sparse)


@njit(nogil=True)
def add_row(
    tables: Tables,
    links: OwnerLinks,
    columns: EditedColumns,
    number: int,
    row: int,
    owner: int,
    busy: NDArray[np.float64],
) -> None:
    """Add to `busy` f64[L + S] for how long a row of child `number` keeps links busy, owned so:
    those that owners share, then each one's own."""
    sent, pulled, sparse = bytes_of_row(tables, links, columns, number, row)
    kind, shared = links.kind[owner], links.push.shape[2]
    for link in range(shared):
        busy[link] += sent * links.push[sparse, kind, link]
        busy[link] += pulled * links.pull[sparse, kind, link]
    busy[shared + owner] += sent * links.own_push[sparse, kind]
    busy[shared + owner] += pulled * links.own_pull[sparse, kind]


@njit(nogil=True)
def busy_seconds(
    tables: Tables, links: OwnerLinks, columns: EditedColumns, child: Child
) -> NDArray[np.float64]:
    """f64[L + S]: of all rows of the child that have an owner."""
    busy = np.zeros(links.push.shape[2] + len(links.kind))
    for row in range(child.start, child.stop):
        if columns.method[row] == SERVER_METHOD and columns.server[row] >= 0:
            owner = np.int64(columns.server[row])
            add_row(tables, links, columns, child.number, row, owner, busy)
    return busy


@njit(nogil=True)
def least_busy_owner(
    tables: Tables,
    links: OwnerLinks,
    columns: EditedColumns,
    number: int,
    rows: NDArray[np.int64],
    busy: NDArray[np.float64],
    but: int,
) -> Any:
    """The owner of all these rows of child `number` that leaves the busiest link least busy, of
    equal ones that with the least sum of squares. but: an owner that is none, or -1."""
    kinds, shared = links.push.shape[1], links.push.shape[2]
    most_of, sum_of, added = np.zeros(kinds), np.zeros(kinds), np.zeros(kinds)
    for kind in range(kinds):
        after = busy[:shared].copy()
        for row in rows:
            sent, pulled, sparse = bytes_of_row(tables, links, columns, number, row)
            for link in range(shared):
                after[link] += sent * links.push[sparse, kind, link]
                after[link] += pulled * links.pull[sparse, kind, link]
            added[kind] += sent * links.own_push[sparse, kind]
            added[kind] += pulled * links.own_pull[sparse, kind]
        most_of[kind], sum_of[kind] = after.max(), (after**2).sum()
    first, second = -1, -1  # whose own links are the busiest
    for owner in range(len(links.kind)):
        if first < 0 or busy[shared + owner] > busy[shared + first]:
            first, second = owner, first
        elif second < 0 or busy[shared + owner] > busy[shared + second]:
            second = owner
    best, best_most, best_sum = -1, np.inf, np.inf
    for owner in range(len(tables.weight)):
        if owner == but:
            continue
        kind, own = links.kind[owner], busy[shared + owner]
        other = second if owner == first else first
        mine = own + added[kind]
        most = max(most_of[kind], mine)
        if other >= 0:
            most = max(most, busy[shared + other])
        total = sum_of[kind] + mine**2 - own**2
        less = most < best_most * (1 - 1e-9)
        if less or (most <= best_most * (1 + 1e-9) and total < best_sum):
            best, best_most, best_sum = owner, most, total
    return best


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
