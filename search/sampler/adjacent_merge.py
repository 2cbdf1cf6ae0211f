"""The adjacent-merge constraint (AutoSync supplement, algorithm 2), mended and compiled.

As printed it can leave groups empty and walk past the last one. Here each group aims at the bytes
left over the groups left, and always leaves the others enough shards.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.search.sampler.counter_random import draw, stream
from autosync.search.sampler.load_balance import unit_bytes
from autosync.search.sampler.sampling_tables import Record, Tables
from autosync.simulator.numba_cache import cached_kernel

MERGING = 3
"""Purpose of the random stream of a proposal's groups."""

METHODS = 5

BUCKET = np.dtype(
    [
        ("shards", np.int64),
        ("bytes", np.float64),
        ("groups", np.int64),
        ("load", np.float64),
        ("target", np.float64),
        ("current", np.int64),
    ],
    align=True,
)
"""Shards that may travel together: equal method, option, type and server.

shards, bytes, groups: left to assign. load, target: bytes of the open group; current: its number.
"""


@cached_kernel
def merge_adjacent(
    tables: Tables,
    seed: np.uint64,
    indices: NDArray[np.uint64],
    first: NDArray[np.int64],
    axis: NDArray[np.int8],
    parts: NDArray[np.int32],
    length: NDArray[np.int64],
    method: NDArray[np.uint8],
    server: NDArray[np.int16],
    option: NDArray[np.uint16],
    group: NDArray[np.int32],
) -> None:
    """Number the groups of all unpinned shards (`group` -1), contiguous in gradient-ready order.

    A family is a server's buckets, or those of all collectives: it gets a drawn number of groups,
    shared among its buckets by bytes. Groups end numbered by first appearance, as in `encode`.
    """
    rules = tables.rules[0]
    families = len(tables.weight) + 1
    buckets = np.zeros(METHODS * rules.options * rules.dtypes * families, dtype=BUCKET)
    touched = np.empty(len(buckets), dtype=np.int64)
    family_shards = np.empty(families, dtype=np.int64)
    family_bytes = np.empty(families, dtype=np.float64)
    start = np.empty(len(tables.variables) + 1, dtype=np.int64)
    for i in range(len(indices)):
        _starts(first[i], parts[i], start)
        family_shards[:] = 0
        family_bytes[:] = 0.0
        used = _tally(
            tables.variables, rules, axis[i], start, length, method, server, option,
            buckets, touched, family_shards, family_bytes,
        )  # fmt: skip
        name = stream(seed, indices[i], MERGING)
        _share_groups(rules.max_groups, name, buckets, touched[:used], family_shards, family_bytes)
        groups = _assign(
            tables.variables, rules, tables.ready_order, families, axis[i], start, length,
            method, server, option, group, buckets,
        )  # fmt: skip
        _renumber(group[first[i] : first[i + 1]], groups)


@njit(nogil=True)
def _starts(row: int, parts: NDArray[np.int32], start: NDArray[np.int64]) -> None:
    """The first row of each variable of a strategy, and the row after the last."""
    for v in range(len(parts)):
        start[v] = row
        row += parts[v]
    start[len(parts)] = row


@njit(nogil=True)
def _kind(rules: Record, variable: Record, method: int, option: int) -> Any:
    """Shards of equal kind and server may travel in one message."""
    return (method * rules.options + option) * rules.dtypes + variable.dtype


@njit(nogil=True)
def _tally(
    variables: NDArray[np.void],
    rules: Record,
    axis: NDArray[np.int8],
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    method: NDArray[np.uint8],
    server: NDArray[np.int16],
    option: NDArray[np.uint16],
    buckets: NDArray[np.void],
    touched: NDArray[np.int64],
    family_shards: NDArray[np.int64],
    family_bytes: NDArray[np.float64],
) -> int:
    """Count the shards and bytes of buckets and families; returns how many buckets are touched."""
    used = 0
    families = len(family_shards)
    for v in range(len(variables)):
        if variables[v].pin >= 0:
            continue
        unit = unit_bytes(variables[v], axis[v])
        kind = _kind(rules, variables[v], method[start[v]], option[start[v]]) * families
        for row in range(start[v], start[v + 1]):
            family = server[row] + 1
            bucket = buckets[kind + family]
            if bucket.shards == 0:
                bucket.bytes = 0.0
                touched[used] = kind + family
                used += 1
            bucket.shards += 1
            bucket.bytes += unit * length[row]
            family_shards[family] += 1
            family_bytes[family] += unit * length[row]
    return used


@njit(nogil=True)
def _share_groups(
    max_groups: int,
    name: np.uint64,
    buckets: NDArray[np.void],
    touched: NDArray[np.int64],
    family_shards: NDArray[np.int64],
    family_bytes: NDArray[np.float64],
) -> None:
    """Draw the collectives' number of groups and the servers', and share them among buckets."""
    families = len(family_shards)
    collective = 1 + draw(name, 0, max(1, min(family_shards[0], max_groups)))
    fullest = 1
    for family in range(1, families):
        fullest = max(fullest, family_shards[family])
    per_server = 1 + draw(name, 1, min(fullest, max_groups))
    for b in touched:
        family, bucket = b % families, buckets[b]
        drawn = collective if family == 0 else min(per_server, family_shards[family])
        share = np.int64(round(drawn * bucket.bytes / family_bytes[family]))
        bucket.groups = min(max(share, 1), bucket.shards)
        bucket.current = -1


@njit(nogil=True)
def _assign(
    variables: NDArray[np.void],
    rules: Record,
    ready_order: NDArray[np.int64],
    families: int,
    axis: NDArray[np.int8],
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    method: NDArray[np.uint8],
    server: NDArray[np.int16],
    option: NDArray[np.uint16],
    group: NDArray[np.int32],
    buckets: NDArray[np.void],
) -> int:
    """Deal the shards out in gradient-ready order; returns the number of groups, pinned too."""
    groups: int = rules.pin_groups
    for v in ready_order:
        if variables[v].pin >= 0:
            continue
        unit = unit_bytes(variables[v], axis[v])
        kind = _kind(rules, variables[v], method[start[v]], option[start[v]]) * families
        for row in range(start[v], start[v + 1]):
            bucket = buckets[kind + server[row] + 1]
            size = unit * length[row]
            if _opens(bucket, size):
                bucket.target = bucket.bytes / bucket.groups
                bucket.groups -= 1
                bucket.load = 0.0
                bucket.current = groups
                groups += 1
            bucket.load += size
            bucket.bytes -= size
            bucket.shards -= 1
            group[row] = bucket.current
    return groups


@njit(nogil=True)
def _opens(bucket: Record, size: float) -> Any:
    """Whether the next shard begins a group: the open one is nearest its target without it, or
    the shards left are needed to fill the groups left."""
    if bucket.current < 0:
        return True
    full = bucket.load + 0.5 * size > bucket.target
    return bucket.groups > 0 and (full or bucket.shards <= bucket.groups)


@njit(nogil=True)
def _renumber(group: NDArray[np.int32], groups: int) -> None:
    """Number groups in order of first appearance, as `encode` does."""
    name = np.full(groups, -1, dtype=np.int32)
    used = 0
    for row in range(len(group)):
        if name[group[row]] < 0:
            name[group[row]] = used
            used += 1
        group[row] = name[group[row]]
