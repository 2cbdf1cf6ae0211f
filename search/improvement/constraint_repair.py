"""The two constraints, kept by strategies that are made of others where the space has them.

Load balance: where owners of several strategies meet, the overloaded servers give shards up, and
`balance_load` places them as the sampler does. Adjacent merging: groups are formed anew from
borders, so that each is contiguous in gradient-ready order; without it groups are those of the
strategies that the shards come from.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.search.improvement.parent_columns import METHODS, row_class
from autosync.search.sampler.adjacent_merge import renumber_groups
from autosync.search.sampler.drawn_columns import ShardColumns
from autosync.search.sampler.load_balance import unit_bytes
from autosync.search.sampler.sampling_tables import Record, Tables
from autosync.simulator.numba_cache import cached_kernel

_SERVER_METHOD = np.uint8(0)


@cached_kernel
def release_excess(tables: Tables, axis: NDArray[np.int8], shards: ShardColumns) -> None:
    """Take the owner (-1) from shards of overloaded servers, until what all servers hold beyond
    their parts of the bandwidth is within the largest shard. `balance_load` then keeps it there.
    Without the constraint owners stay."""
    if not tables.rules[0].load_balance:
        return
    weight = tables.weight
    load = np.zeros(len(weight))
    for i in range(len(axis)):
        load[:] = 0.0
        total, largest = 0.0, 0.0
        for row in range(shards.first[i], shards.first[i + 1]):
            if shards.method[row] == _SERVER_METHOD:
                size = _shard_bytes(tables, axis[i], shards, row)
                total, largest = total + size, max(largest, size)
                if shards.server[row] >= 0:
                    load[shards.server[row]] += size
        if total == 0.0 or np.maximum(load - total * weight, 0.0).sum() <= largest:
            continue
        for row in range(shards.first[i], shards.first[i + 1]):
            server, pinned = shards.server[row], tables.variables[shards.variable[row]].pin >= 0
            if shards.method[row] != _SERVER_METHOD or server < 0 or pinned:
                continue
            if load[server] > total * weight[server]:
                load[server] -= _shard_bytes(tables, axis[i], shards, row)
                shards.server[row] = -1


@njit(nogil=True)
def _shard_bytes(tables: Tables, axis: NDArray[np.int8], shards: ShardColumns, row: int) -> float:
    v = np.int64(shards.variable[row])
    size: float = unit_bytes(tables.variables[v], axis[v]) * shards.length[row]
    return size


@cached_kernel
def form_groups(
    tables: Tables,
    options: int,
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
        _join_labels(tables, options, parts, most, shards)
        return
    rules, families = tables.rules[0], len(tables.weight) + 1
    classes = families * METHODS * options * rules.dtypes
    current, open_in = np.empty(classes, np.int64), np.full(classes, -1, np.int64)
    used = np.empty(families, np.int64)
    row_of = np.empty(len(tables.variables) + 1, dtype=np.int64)
    for i in range(len(parts)):
        used[:] = 0
        row_of[0] = shards.first[i]
        for v in range(len(tables.variables)):
            row_of[v + 1] = row_of[v] + parts[i, v]
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
    parts: NDArray[np.int32],
    most: NDArray[np.int64],
    shards: ShardColumns,
) -> None:
    """Shards of one label and kind travel together; of a label that has another kind, or comes when
    there are enough groups, with the latest group of their own kind."""
    rules, families = tables.rules[0], len(tables.weight) + 1
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
