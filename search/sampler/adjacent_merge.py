"""The adjacent-merge constraint (AutoSync supplement, algorithm 2), corrected and compiled.

As printed it can leave groups empty and walk past the last one. Here each group aims at the bytes
left over the groups left, and always leaves the others enough shards. Without the constraint a
shard draws its group.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.search.sampler.counter_random import draw, stream
from autosync.search.sampler.load_balance import unit_bytes
from autosync.search.sampler.sampling_tables import ChoiceColumns, Record, ShardColumns, Tables
from autosync.simulator.numba_cache import cached_kernel

MERGING = 3
"""Purpose of the random stream of a proposal's groups."""

METHODS = 5

_GROUP_WORDS = 2
"""Words of that stream before those of shards that draw their groups."""

MERGE_CLASS = np.dtype(
    [
        ("shards", np.int64),
        ("bytes", np.float64),
        ("groups", np.int64),
        ("open_bytes", np.float64),
        ("target_bytes", np.float64),
        ("current", np.int64),
        ("begin", np.int64),
    ],
    align=True,
)
"""Shards that may travel together: equal method, option, type and server.

shards, bytes, groups: left to assign. open_bytes, target_bytes: of the open group; current: its
number. begin: the number of its first group, where groups are drawn.
"""


class MergeTables(NamedTuple):
    """What merging counts; a family is a server's classes, or those of all collectives (family 0).

    classes MERGE_CLASS[]: a class is number `its synchronizer and type * families + family`.
    touched i64[]: numbers of the classes that have shards.
    shards i64[families], bytes f64[families]: of each family.
    """

    classes: NDArray[np.void]
    touched: NDArray[np.int64]
    shards: NDArray[np.int64]
    bytes: NDArray[np.float64]


@cached_kernel
def merge_adjacent(
    tables: Tables,
    seed: np.uint64,
    indices: NDArray[np.uint64],
    choices: ChoiceColumns,
    shards: ShardColumns,
) -> None:
    """Number the groups of all unpinned shards (`group` -1), contiguous in gradient-ready order.

    Each family gets a drawn number of groups, shared among its classes by bytes. Groups end
    numbered by first appearance, as in `encode`.
    """
    rules, first = tables.rules[0], shards.first
    families = len(tables.weight) + 1
    classes = np.zeros(METHODS * rules.options * rules.dtypes * families, dtype=MERGE_CLASS)
    merge = MergeTables(
        classes, np.empty(len(classes), np.int64), np.empty(families, np.int64), np.empty(families)
    )
    start = np.empty(len(tables.variables) + 1, dtype=np.int64)
    for i in range(len(indices)):
        first_rows(first[i], choices.parts[i], start)
        used = _tally(tables, choices.axis[i], start, shards, merge)
        name = stream(seed, indices[i], MERGING)
        _share_groups(rules.max_groups, name, merge, merge.touched[:used])
        if rules.adjacent_merge:
            groups = _assign(tables, choices.axis[i], start, shards, merge)
        else:
            groups = _scatter(tables, name, merge.touched[:used], start, shards, merge)
        renumber_groups(shards.group[first[i] : first[i + 1]], groups)


@njit(nogil=True, _nrt=False)
def first_rows(row: int, parts: NDArray[np.int32], start: NDArray[np.int64]) -> None:
    """Fill i64[V + 1]: the first row of each variable of a strategy, and the row after the last.
    row: the first of all."""
    for v in range(len(parts)):
        start[v] = row
        row += parts[v]
    start[len(parts)] = row


@njit(nogil=True, _nrt=False)
def _first_class(
    rules: Record, variable: Record, shards: ShardColumns, row: int, families: int
) -> Any:
    """The class of family 0 of shards that are synchronized alike and of equal type."""
    method, option = np.int64(shards.method[row]), np.int64(shards.option[row])
    return ((method * rules.options + option) * rules.dtypes + variable.dtype) * families


@njit(nogil=True, _nrt=False)
def _tally(
    tables: Tables,
    axis: NDArray[np.int8],
    start: NDArray[np.int64],
    shards: ShardColumns,
    merge: MergeTables,
) -> int:
    """Count the shards and bytes of classes and families; returns how many classes are touched."""
    variables, rules = tables.variables, tables.rules[0]
    families, used = len(merge.shards), 0
    merge.shards[:] = 0
    merge.bytes[:] = 0.0
    for v in range(len(variables)):
        if variables[v].pin >= 0:
            continue
        unit = unit_bytes(variables[v], axis[v])
        for row in range(start[v], start[v + 1]):
            base = _first_class(rules, variables[v], shards, row, families)
            family = shards.server[row] + 1
            merged = merge.classes[base + family]
            if merged.shards == 0:
                merged.bytes = 0.0
                merge.touched[used] = base + family
                used += 1
            size = unit * shards.length[row]
            merged.shards += 1
            merged.bytes += size
            merge.shards[family] += 1
            merge.bytes[family] += size
    return used


@njit(nogil=True, _nrt=False)
def _share_groups(
    max_groups: int, name: np.uint64, merge: MergeTables, touched: NDArray[np.int64]
) -> None:
    """Draw the collectives' number of groups and the servers', and share them among classes."""
    families = len(merge.shards)
    collective = 1 + draw(name, 0, max(1, min(merge.shards[0], max_groups)))
    fullest = 1
    for family in range(1, families):
        fullest = max(fullest, merge.shards[family])
    per_server = 1 + draw(name, 1, min(fullest, max_groups))
    for number in touched:
        family, merged = number % families, merge.classes[number]
        drawn = collective if family == 0 else min(per_server, merge.shards[family])
        share = np.int64(round(drawn * merged.bytes / merge.bytes[family]))
        merged.groups = min(max(share, 1), merged.shards)
        merged.current = -1


@njit(nogil=True, _nrt=False)
def _assign(
    tables: Tables,
    axis: NDArray[np.int8],
    start: NDArray[np.int64],
    shards: ShardColumns,
    merge: MergeTables,
) -> int:
    """Deal the shards out in gradient-ready order; returns the number of groups, pinned too."""
    variables, rules = tables.variables, tables.rules[0]
    families = len(merge.shards)
    groups: int = rules.pin_groups
    for v in tables.ready_order:
        if variables[v].pin >= 0:
            continue
        unit = unit_bytes(variables[v], axis[v])
        for row in range(start[v], start[v + 1]):
            base = _first_class(rules, variables[v], shards, row, families)
            merged = merge.classes[base + shards.server[row] + 1]
            size = unit * shards.length[row]
            if _opens(merged, size):
                merged.target_bytes = merged.bytes / merged.groups
                merged.groups -= 1
                merged.open_bytes = 0.0
                merged.current = groups
                groups += 1
            merged.open_bytes += size
            merged.bytes -= size
            merged.shards -= 1
            shards.group[row] = merged.current
    return groups


@njit(nogil=True, _nrt=False)
def _scatter(
    tables: Tables,
    name: np.uint64,
    touched: NDArray[np.int64],
    start: NDArray[np.int64],
    shards: ShardColumns,
    merge: MergeTables,
) -> int:
    """Draw the group of every shard from those of its class; returns the number of groups, pinned
    and empty ones too."""
    variables, rules = tables.variables, tables.rules[0]
    families = len(merge.shards)
    groups: int = rules.pin_groups
    for number in touched:
        merge.classes[number].begin = groups
        groups += merge.classes[number].groups
        merge.classes[number].shards = 0
    for v in range(len(variables)):
        if variables[v].pin >= 0:
            continue
        for row in range(start[v], start[v + 1]):
            base = _first_class(rules, variables[v], shards, row, families)
            merged = merge.classes[base + shards.server[row] + 1]
            number = _GROUP_WORDS + row - start[0]
            shards.group[row] = merged.begin + draw(name, number, merged.groups)
    return groups


@njit(nogil=True, _nrt=False)
def _opens(merged: Record, size: float) -> Any:
    """Whether the next shard begins a group: the open one is nearest its target without it, or
    the shards left are needed to fill the groups left."""
    if merged.current < 0:
        return True
    full = merged.open_bytes + 0.5 * size > merged.target_bytes
    return merged.groups > 0 and (full or merged.shards <= merged.groups)


@njit(nogil=True)
def renumber_groups(group: NDArray[np.int32], groups: int) -> None:
    """Number groups in order of first appearance, as `encode` does."""
    name = np.full(groups, -1, dtype=np.int32)
    used = 0
    for row in range(len(group)):
        if name[group[row]] < 0:
            name[group[row]] = used
            used += 1
        group[row] = name[group[row]]
