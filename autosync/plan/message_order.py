"""In which order the halves of buckets are sent: estimated from the profile on one wire, so that
every rank computes the same.

Like `compiler_kernels`, in the subset of Python that numba compiles.
"""

import numpy as np

from autosync.plan.compiler_arrays import DomainArrays, PopulationArrays, Scratch
from autosync.plan.compiler_kernels import (
    M_PS,
    M_RS,
    O_EXPLICIT,
    O_PRIORITY,
    first_half_load,
    list_schedule,
    pop_heap,
    push_heap,
    sort_keys,
)


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


def waits_for_step(population: PopulationArrays, row: int) -> bool:
    """Whether a second half carries new values: an owner or a shard is updated before it."""
    method, option = population.method[row], population.option[row]
    if method == M_PS:
        return not population.returns_gradients[option]
    sharded: bool = population.sharded[option]
    return method == M_RS and sharded


def returns_gradients(population: PopulationArrays, row: int) -> bool:
    """Whether a second half carries what an owner has summed."""
    found: bool = population.returns_gradients[population.option[row]]
    return population.method[row] == M_PS and found


def leaves_when_idle(population: PopulationArrays, row: int) -> bool:
    """Whether a second half waits for nothing but the wire."""
    return not (waits_for_step(population, row) or returns_gradients(population, row))


def returned_order(
    population: PopulationArrays, work: Scratch, buckets: int, explicit: bool
) -> int:
    """The second halves that owners return at once, at the end of work.halves; how many they are.

    They take links in the other direction than what the owners wait for: of those that are there
    the nearest use first, or as they were sent.
    """
    returned = 0
    for position in range(buckets):
        bucket = work.order[position]
        if returns_gradients(population, work.row[bucket]):
            work.sorted[returned] = bucket
            returned += 1
    order = work.halves[2 * buckets - returned : 2 * buckets]
    coming = work.sorted[:returned]
    if not explicit:
        list_schedule(coming, work.at, work.gate, work.load, work.heap, order)
    for place in range(returned):
        order[place] = 2 * (coming[place] if explicit else order[place]) + 1
    return returned


def idle_order(
    domain: DomainArrays, population: PopulationArrays, index: int, work: Scratch, buckets: int
) -> None:
    """All halves in one order, into work.halves: first halves in theirs and, while none of them is
    ready, second halves whose first half has arrived, the nearest use first (in an explicit order:
    as they were sent). Those that carry new values wait for the end of backward. The gradients that
    owners return are last, for they queue by themselves: see `returned_order`.
    """
    stepped = domain.ready_seconds[-1]
    explicit = population.order[index] == O_EXPLICIT
    returned = returned_order(population, work, buckets, explicit)
    now = 0.0
    sent = 0
    looked_at = 0  # of the first halves sent, for those that wait for `step()`
    size = 0
    place = 0
    while place < 2 * buckets - returned:
        while now >= stepped and looked_at < sent:
            bucket = work.order[looked_at]
            if waits_for_step(population, work.row[bucket]):
                nearness = looked_at if explicit else work.gate[bucket]
                size = push_heap(work.heap, size, nearness * buckets + bucket)
            looked_at += 1
        ready = np.inf
        if sent < buckets:
            ready = domain.ready_seconds[work.ready[work.order[sent]]]
        if ready <= now:
            bucket = work.order[sent]
            now += work.load[bucket]
            work.halves[place] = 2 * bucket
            place += 1
            if leaves_when_idle(population, work.row[bucket]):
                nearness = sent if explicit else work.gate[bucket]
                size = push_heap(work.heap, size, nearness * buckets + bucket)
            sent += 1
        elif size > 0:
            bucket = pop_heap(work.heap, size) % buckets
            size -= 1
            work.halves[place] = 2 * bucket + 1
            place += 1
            if population.method[work.row[bucket]] in (M_PS, M_RS):
                now += work.load[bucket]
        elif looked_at < sent:
            now = min(ready, stepped)
        else:
            now = ready
