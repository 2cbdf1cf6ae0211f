"""Which shards share a message after edits: groups formed anew, compiled.

Under adjacent merging groups are formed from borders, so that each is contiguous in gradient-ready
order; without it groups are those of the strategies that the shards come from.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.search.sampler.adjacent_merge import renumber_groups
from autosync.search.sampler.drawn_columns import ShardColumns
from autosync.search.sampler.sampling_tables import Record, Tables
from autosync.simulator.numba_cache import cached_kernel

METHODS = 5


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
        _first_rows(shards.first[i], parts[i], row_of)
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
        _first_rows(shards.first[i], parts[i], row_of)
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


@njit(nogil=True)
def _first_rows(first: int, parts: NDArray[np.int32], row_of: NDArray[np.int64]) -> None:
    """Fill i64[V + 1]: the first row of each variable of a strategy; the row behind its last."""
    row_of[0] = first
    for v in range(len(parts)):
        row_of[v + 1] = row_of[v] + parts[v]
