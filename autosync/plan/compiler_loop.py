"""The compiler's main loop: strategy by strategy, buckets, their order, their messages.

Like `compiler_kernels`, in the subset of Python that numba compiles.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosync.codes import POWERSGD
from autosync.plan.compiler_arrays import DomainArrays, PopulationArrays
from autosync.plan.compiler_kernels import (
    LEAVES_VALUES,
    M_AG,
    M_AR,
    M_PS,
    M_RS,
    O_DDP,
    O_EXPLICIT,
    O_PRIORITY,
    SPARSE_PULL,
    T_ALL,
    chain,
    encoded_bytes,
    first_dimension,
    first_half_load,
    list_schedule,
    pulled_bytes,
    row_elements,
    second_factor_bytes,
    shard_bytes,
    sort_keys,
    sort_rows,
)

I64 = NDArray[np.int64]


class PlanArrays(NamedTuple):
    """The columns of a PlanTable, allocated for the most that can come out."""

    first: I64
    operation: NDArray[np.uint8]
    channel: NDArray[np.uint8]
    root: NDArray[np.int16]
    ranks: NDArray[np.uint16]
    encoding: NDArray[np.uint8]
    carries_values: NDArray[np.bool_]
    wire_bytes: I64
    ready: NDArray[np.int32]
    after: I64
    gate: NDArray[np.int32]
    update: NDArray[np.uint8]
    bucket: I64
    bucket_first: I64
    piece_row: I64
    piece_start: I64
    piece_stop: I64


class Scratch(NamedTuple):
    """Per-strategy working arrays: R rows, V variables, C buckets at most.

    row, value: a bucket's first row (population index) and its payload were it not encoded.
    second: of its payload, what PowerSGD's second all-reduce carries; else 0. load: seconds on the
    wire of its first half. at: seconds from the start of backward, of its gradients and then of
    its first half's arrival.
    """

    starts: I64
    place: I64
    rows: I64
    row: I64
    wire: I64
    value: I64
    second: I64
    ready: I64
    gate: I64
    key: I64
    order: I64
    sorted: I64
    heap: I64
    last: I64
    load: NDArray[np.float64]
    at: NDArray[np.float64]
    stages: NDArray[np.int32]


def cut_buckets(
    domain: DomainArrays,
    population: PopulationArrays,
    index: int,
    out: PlanArrays,
    work: Scratch,
    base: int,
    piece: int,
) -> int:
    """Groups, cut into slices where the schedule asks for it, as buckets `base` and on.

    Fills the pieces from `piece` on, and per bucket row, wire, value, ready, gate and (for the
    explicit order) key. Returns the number of buckets; bucket_first holds the rest.
    """
    groups = sort_rows(domain, population, index, work.starts, work.place, work.rows)
    begin = population.first[index]
    buckets = 0
    for group in range(groups):
        lead = begin + work.rows[work.starts[group]]
        variable = population.variable[lead]
        method = int(population.method[lead])
        encoding = population.encoding[population.option[lead]]
        if population.order[index] == O_DDP and domain.sparse[variable]:
            method = M_AG
        dense = method in (M_AR, M_RS) or (method == M_PS and not domain.sparse[variable])
        limit = 0
        if dense and population.order[index] != O_DDP and encoding < POWERSGD:
            limit = population.slice_bytes[index] // domain.item_bytes[variable]
        filled = 0
        for at in range(work.starts[group], work.starts[group + 1]):
            local = work.rows[at]
            row = begin + local
            variable = population.variable[row]
            axis = population.axis[index, variable]
            length = population.length[row]
            elements = row_elements(domain, variable, axis, length)
            start = 0
            while start < elements:
                if (at == work.starts[group] and start == 0) or filled == 0:
                    work.row[buckets] = row
                    work.wire[buckets] = 0
                    work.value[buckets] = 0
                    work.second[buckets] = 0
                    work.ready[buckets] = 0
                    work.gate[buckets] = domain.first_use[variable]
                    work.key[buckets] = population.position[row]
                    out.bucket_first[base + buckets] = piece
                    buckets += 1
                bucket = buckets - 1
                stop = elements
                if limit > 0:
                    stop = min(elements, start + limit - filled)
                if start == 0 and stop == elements:
                    work.wire[bucket] += shard_bytes(
                        domain, method, variable, axis, length, encoding
                    )
                    if method == M_AR:
                        work.second[bucket] += second_factor_bytes(
                            elements, first_dimension(domain, variable, axis, length), encoding
                        )
                else:
                    work.wire[bucket] += encoded_bytes(
                        stop - start, domain.item_bytes[variable], 1, encoding
                    )
                work.value[bucket] += (stop - start) * domain.item_bytes[variable]
                work.ready[bucket] = max(work.ready[bucket], domain.ready[variable])
                work.gate[bucket] = min(work.gate[bucket], domain.first_use[variable])
                work.key[bucket] = min(work.key[bucket], population.position[row])
                out.piece_row[piece] = local
                out.piece_start[piece] = start
                out.piece_stop[piece] = stop
                piece += 1
                filled += stop - start
                start = stop
                if filled == limit:
                    filled = 0
    out.bucket_first[base + buckets] = piece
    return buckets


def first_half_order(
    domain: DomainArrays, population: PopulationArrays, index: int, work: Scratch, buckets: int
) -> None:
    """The order in which buckets are first sent, into work.order; work.load and work.at become
    what their first half puts on the wire, and when it has arrived."""
    for bucket in range(buckets):
        work.heap[bucket] = work.ready[bucket] * buckets + bucket
        method = int(population.method[work.row[bucket]])
        owner = int(population.server[work.row[bucket]]) if method == M_PS else -1
        load_bytes = work.wire[bucket] * first_half_load(domain, method)
        work.load[bucket] = load_bytes / domain.bytes_per_second[owner + 1]
        work.at[bucket] = domain.ready_seconds[work.ready[bucket]]
    if population.order[index] == O_PRIORITY:
        sort_keys(work.heap, work.sorted, buckets)
        coming = work.sorted[:buckets]
        list_schedule(coming, work.at, work.gate, work.load, work.heap, work.order)
    else:
        if population.order[index] == O_EXPLICIT:
            for bucket in range(buckets):
                work.heap[bucket] = work.key[bucket] * buckets + bucket
        sort_keys(work.heap, work.order, buckets)
    now = 0.0
    for position in range(buckets):
        bucket = work.order[position]
        now = max(now, work.at[bucket]) + work.load[bucket]
        work.at[bucket] = now


def second_half_order(
    domain: DomainArrays, population: PopulationArrays, index: int, work: Scratch, buckets: int
) -> None:
    """Deferred second halves. Where they overlap the forward pass: from the end of backward, of
    those whose first half has arrived the nearest use first, so that the one used first does not
    hold up the wire until its own first half, the last one, is through; else as they were sent.
    """
    if not population.overlap[index] or population.order[index] == O_EXPLICIT:
        return
    stepped = domain.ready_seconds[-1]
    for position in range(buckets):
        bucket = work.order[position]
        work.sorted[position] = bucket
        work.at[bucket] = max(work.at[bucket], stepped)
        if population.method[work.row[bucket]] not in (M_PS, M_RS):
            work.load[bucket] = 0.0
    coming = work.sorted[:buckets]
    list_schedule(coming, work.at, work.gate, work.load, work.heap, work.order)


def emit(
    domain: DomainArrays,
    population: PopulationArrays,
    index: int,
    out: PlanArrays,
    work: Scratch,
    base: int,
    message: int,
    bucket: int,
    second_half: bool,
    ring_base: int,
) -> int:
    """Append the messages of one bucket from `message` on; returns the next free message.

    The first half of a chain ends where its second half must wait: for `step()` when an owner or
    a shard updates, or for the next forward pass when a reduce-scatter overlaps it.
    """
    row = work.row[bucket]
    option = population.option[row]
    variable = population.variable[row]
    method = population.method[row]
    encoding = population.encoding[option]
    ring = population.ring[option]
    server = population.server[row]
    stages = work.stages
    count = chain(
        domain,
        method,
        domain.sparse[variable],
        population.order[index] == O_DDP,
        population.algorithm[option],
        ring_base + ring if ring >= 0 else T_ALL,
        population.hierarchical[option],
        population.sharded[option],
        server,
        work.second[bucket] > 0,
        stages,
    )
    split = count
    for stage in range(1, count):
        waits = stages[stage - 1, 4] in LEAVES_VALUES
        if stages[stage, 5] == 1 and (waits or population.overlap[index]):
            split = min(split, stage)
    values = False
    for stage in range(count):
        if (stage >= split) == second_half:
            operation = stages[stage, 0]
            values = values or (stage > 0 and stages[stage - 1, 4] in LEAVES_VALUES)
            out.operation[message] = operation
            out.channel[message] = stages[stage, 1]
            out.root[message] = stages[stage, 2]
            out.ranks[message] = stages[stage, 3]
            out.update[message] = stages[stage, 4]
            out.encoding[message] = 0 if values else encoding
            out.carries_values[message] = values
            out.wire_bytes[message] = work.value[bucket] if values else work.wire[bucket]
            if work.second[bucket] > 0:
                out.wire_bytes[message] = work.second[bucket]
                if stage == 0:
                    out.wire_bytes[message] = work.wire[bucket] - work.second[bucket]
            if operation == SPARSE_PULL:
                out.wire_bytes[message] = pulled_bytes(domain, variable, work.wire[bucket])
            out.ready[message] = work.ready[bucket] if stage == 0 else -1
            out.after[message] = work.last[bucket] if stage > 0 else -1
            out.gate[message] = work.gate[bucket] if population.overlap[index] else -1
            out.bucket[message] = base + bucket
            work.last[bucket] = message - out.first[index]
            message += 1
    return message


def compile_loop(
    domain: DomainArrays,
    population: PopulationArrays,
    ring_base: int,
    out: PlanArrays,
    work: Scratch,
) -> None:
    """Fill `out` for every strategy; its `first` and `bucket_first` tell how far."""
    base = 0
    message = 0
    out.first[0] = 0
    out.bucket_first[0] = 0
    for index in range(len(population.order)):
        buckets = cut_buckets(domain, population, index, out, work, base, out.bucket_first[base])
        first_half_order(domain, population, index, work, buckets)
        for position in range(buckets):
            message = emit(
                domain,
                population,
                index,
                out,
                work,
                base,
                message,
                work.order[position],
                False,
                ring_base,
            )
        second_half_order(domain, population, index, work, buckets)
        for position in range(buckets):
            message = emit(
                domain,
                population,
                index,
                out,
                work,
                base,
                message,
                work.order[position],
                True,
                ring_base,
            )
        out.first[index + 1] = message
        base += buckets
    out.first[len(population.order)] = message
