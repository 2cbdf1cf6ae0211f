"""The compiler's loops, in the subset of Python that numba compiles: one source for both.

Training processes run them as they are on a single strategy; `simulator/numba_compiler.py` compiles
the very same functions for populations.
"""

import numpy as np
from numpy.typing import NDArray

from autosync.codes import POWERSGD, Channel, Method, Op, Order, Update
from autosync.plan.compiler_arrays import (
    ALL_RANKS,
    FIRST_SERVER,
    LEADERS,
    NODE_TEAMS,
    DomainArrays,
    PopulationArrays,
)

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

# The enumerations of autosync.codes, as plain integers that a compiled loop can hold.
M_PS, M_AR, M_RS, M_AG, M_FACTORS = map(int, Method)
O_FIFO, O_PRIORITY, O_EXPLICIT, O_DDP = map(int, Order)
(ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, PUSH, PULL, SPARSE_ALL_GATHER,
 FACTOR_ALL_GATHER, SPARSE_PUSH, SPARSE_PULL) = map(int, Op)  # fmt: skip
CH_GRADIENT, CH_VALUE, CH_PUSH, CH_PULL, CH_REDUCE, CH_BROADCAST, CH_GATHER = map(int, Channel)
U_NONE, U_REPLICATED, U_OWNER, U_SHARD = map(int, Update)
LEAVES_VALUES = tuple(int(update) for update in Update if update.leaves_values)
T_ALL, T_NODES, T_LEADERS, T_SERVER = ALL_RANKS, NODE_TEAMS, LEADERS, FIRST_SERVER
FACTOR_BYTES = 4  # PowerSGD's algebra is in float32, whatever the gradient's type
STAGES = 4  # the longest chain: reduce, push, pull, broadcast
INDEX_BYTES = 8  # a touched row travels with its int64 index


def row_elements(domain: DomainArrays, variable: int, axis: int, length: int) -> int:
    """Elements of a shard of `length` along `axis` (elements when flat)."""
    if axis < 0:
        return length
    return length * (domain.elements[variable] // domain.dims[variable, axis])


def low_rank_gains(elements: int, rows: int, rank: int) -> bool:
    """Whether PowerSGD's two factors of `rank` columns are smaller than their matrix, which has
    `elements` in `rows`. One that gains nothing travels as it is."""
    return rank * (rows + elements // max(rows, 1)) < elements


def encoded_bytes(elements: int, item_bytes: int, rows: int, encoding: int) -> int:
    """Payload of `elements` values; `rows` is the first dimension, for PowerSGD's factors."""
    if encoding == 0:
        return elements * item_bytes
    if encoding < POWERSGD:
        return elements * min(item_bytes, 2)
    rank = encoding - POWERSGD
    if not low_rank_gains(elements, rows, rank):
        return elements * FACTOR_BYTES
    return rank * (rows + elements // max(rows, 1)) * FACTOR_BYTES


def second_factor_bytes(elements: int, rows: int, encoding: int) -> int:
    """Of `encoded_bytes`, what PowerSGD sends in its second all-reduce: Q, of r columns. A matrix
    that gains nothing travels as it is, in the first."""
    if encoding < POWERSGD:
        return 0
    rank = encoding - POWERSGD
    if not low_rank_gains(elements, rows, rank):
        return 0
    return rank * (elements // max(rows, 1)) * FACTOR_BYTES


def first_dimension(domain: DomainArrays, variable: int, axis: int, length: int) -> int:
    """Rows of a shard: its length when axis 0 is cut; flat pieces count as one row."""
    if axis == 0:
        return length
    if axis < 0 and length != domain.elements[variable]:
        return 1
    return domain.dims[variable, 0]


def shard_bytes(
    domain: DomainArrays, method: int, variable: int, axis: int, length: int, encoding: int
) -> int:
    """What one replica contributes to synchronize a whole shard once."""
    item = domain.item_bytes[variable]
    elements = row_elements(domain, variable, axis, length)
    if method == M_FACTORS:
        rows = domain.dims[variable, 0]
        return domain.factor_rows[variable] * (rows + domain.elements[variable] // rows) * item
    if domain.sparse[variable] and method in (M_PS, M_AG):
        table_rows = domain.dims[variable, 0]
        rows = length if axis == 0 else table_rows
        touched = -(-domain.touched_rows[variable] * rows // table_rows)
        return touched * (elements // max(rows, 1) * item + INDEX_BYTES)
    return encoded_bytes(elements, item, first_dimension(domain, variable, axis, length), encoding)


def pulled_bytes(domain: DomainArrays, variable: int, pushed: int) -> int:
    """New values of the rows that any replica touched: at most the table, at most their sum."""
    table_rows = domain.dims[variable, 0]
    row_bytes = domain.elements[variable] // table_rows * domain.item_bytes[variable] + INDEX_BYTES
    return min(pushed * domain.world, table_rows * row_bytes)


def sort_rows(
    domain: DomainArrays,
    population: PopulationArrays,
    index: int,
    starts: I64,
    place: I64,
    rows: I64,
) -> int:
    """Rows of strategy `index` by group, in gradient-ready order within each; returns the groups.

    starts i64[groups + 1]: where each group begins in rows i64[R]. place i64[V]: scratch.
    """
    begin, end = population.first[index], population.first[index + 1]
    groups = 0
    for row in range(begin, end):
        groups = max(groups, population.group[row] + 1)
    starts[: groups + 1] = 0
    for row in range(begin, end):
        starts[population.group[row] + 1] += 1
    for group in range(groups):
        starts[group + 1] += starts[group]
    row = 0
    for variable in range(population.parts.shape[1]):
        place[variable] = row
        row += population.parts[index, variable]
    for variable in domain.by_ready:
        row = place[variable]
        for local in range(row, row + population.parts[index, variable]):
            group = population.group[begin + local]
            rows[starts[group]] = local
            starts[group] += 1
    for group in range(groups, 0, -1):
        starts[group] = starts[group - 1]
    starts[0] = 0
    return groups


def push_heap(heap: I64, size: int, key: int) -> int:
    """Add `key` to a binary min-heap of `size` entries; returns the new size."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if heap[parent] <= key:
            break
        heap[child] = heap[parent]
        child = parent
    heap[child] = key
    return size + 1


def pop_heap(heap: I64, size: int) -> int:
    """Remove the smallest key and return it; the caller counts down its size."""
    smallest = heap[0]
    key = heap[size - 1]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size - 1:
            break
        if child + 1 < size - 1 and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[parent] = heap[child]
        parent = child
    heap[parent] = key
    return smallest


def sort_keys(keys: I64, order: I64, count: int) -> None:
    """The buckets of `keys` (each some rank * count + bucket), smallest key first.

    Sorts in place: where nothing is allocated, the compiled loop needs no reference counts, which
    took nearly half of its time.
    """
    for size in range(count):
        push_heap(keys, size, keys[size])
    for position in range(count):
        order[position] = pop_heap(keys, count - position) % count


def first_half_load(domain: DomainArrays, method: int) -> float:
    """Bytes that a NIC carries in one direction for each byte of a bucket's first half: half a
    ring to reduce or to reach balanced owners, a whole one to all-reduce, and P - 1 of everybody's.
    """
    others = float(domain.world - 1)
    if method in (M_PS, M_RS):
        return others / domain.world
    if method == M_AR:
        return 2.0 * others / domain.world
    return others


def list_schedule(coming: I64, at: F64, gate: I64, load: F64, heap: I64, order: I64) -> None:
    """List schedule on one wire: of the buckets whose gradients are ready, the nearest use first.

    coming i64[C]: buckets in the order in which they become ready, at seconds f64[B]; gate i64[B]:
    of their next use; load f64[B]: seconds on the wire; order i64[C]: the result. Estimated from
    the profile, so that every rank computes the same total order.

    Startups are left out, for they hide behind the message before. A wire estimated too slow
    puts gradients ahead that are not ready when it is their turn, and the wire stands still
    (measured: a third of ResNet-50's iteration); one too fast only sends a little more in order
    of readiness.
    """
    count, scale = len(coming), len(gate)
    now = 0.0
    size = 0
    next_one = 0
    for position in range(count):
        if size == 0 and next_one < count:
            now = max(now, at[coming[next_one]])
        while next_one < count and at[coming[next_one]] <= now:
            bucket = coming[next_one]
            size = push_heap(heap, size, gate[bucket] * scale + bucket)
            next_one += 1
        bucket = pop_heap(heap, size) % scale
        size -= 1
        order[position] = bucket
        now += load[bucket]
