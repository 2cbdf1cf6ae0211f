"""The order in which the messages of buckets are sent. It is estimated from the profile, on one
link, so that every rank computes the same. A chain of messages has a reduction and, if it has to
wait for `step()` or for the next forward pass, a gather: an all-gather or a pull.

In the subset of Python that numba compiles; see `bucket_cutting`.
"""

import numpy as np

from autosync.plan.compiler_arrays import (
    F64,
    I64,
    M_AR,
    M_PS,
    M_RS,
    O_EXPLICIT,
    O_PRIORITY,
    DomainArrays,
    PopulationArrays,
    Scratch,
)


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


def reduction_load(domain: DomainArrays, method: int) -> float:
    """Bytes that a NIC carries in one direction for each byte of a bucket's reduction: half a
    ring to reduce or to reach balanced owners, a whole one to all-reduce, and P - 1 of everybody's.
    """
    others = float(domain.world - 1)
    if method in (M_PS, M_RS):
        return others / domain.world
    if method == M_AR:
        return 2.0 * others / domain.world
    return others


def list_schedule(coming: I64, at: F64, gate: I64, load: F64, heap: I64, order: I64) -> None:
    """List schedule on one link: of the buckets whose gradients are ready, the nearest use first.

    coming i64[C]: buckets in the order in which they become ready, at seconds f64[B]; gate i64[B]:
    of their next use; load f64[B]: seconds on the wire; order i64[C]: the result. Estimated from
    the profile, so that every rank computes the same total order.

    Startups are left out, because they overlap with the previous message. If the link is estimated
    too slow, gradients come first that are not ready when it is their turn, and the link is idle
    (measured: a third of ResNet-50's iteration). If it is estimated too fast, the order is only
    closer to the order of readiness.
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


def passes_all_ranks(domain: DomainArrays, population: PopulationArrays, row: int) -> bool:
    """Whether an owner is sent sums along a chain of all ranks, each of which adds its own, and its
    values go back along one: NCCL's reduce and broadcast. Hosts that serve and rows of tables send
    and receive by themselves."""
    rank_owns = population.method[row] == M_PS and population.server[row] < domain.world
    return domain.one_order and rank_owns and not domain.sparse[population.variable[row]]


def reduction_order(
    domain: DomainArrays, population: PopulationArrays, index: int, work: Scratch, buckets: int
) -> None:
    """Write the order in which buckets are first sent into work.order. work.load and work.at become
    the seconds that their reduction takes on the link, and the time of its arrival."""
    for bucket in range(buckets):
        work.heap[bucket] = work.ready[bucket] * buckets + bucket
        row = work.row[bucket]
        method = int(population.method[row])
        owner, load = -1, 1.0
        if not passes_all_ranks(domain, population, row):
            load = reduction_load(domain, method)
            if method == M_PS:
                owner = int(population.server[row])
        work.load[bucket] = work.wire[bucket] * load / domain.bytes_per_second[owner + 1]
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


def gather_order(
    domain: DomainArrays, population: PopulationArrays, index: int, work: Scratch, buckets: int
) -> None:
    """Order deferred gathers. If they overlap the forward pass, they start at the end of backward:
    of those whose reduction has arrived, the nearest use goes first. So the gather that is used
    first does not block the link until its own reduction, the last one, has arrived. In one order
    all stand behind that one. Otherwise they are in the order of their reductions.
    """
    if not population.overlap[index] or population.order[index] == O_EXPLICIT:
        return
    stepped = domain.ready_seconds[-1]
    if domain.one_order and buckets:
        stepped = max(stepped, work.at[work.order[buckets - 1]])
    for position in range(buckets):
        bucket = work.order[position]
        work.sorted[position] = bucket
        work.at[bucket] = max(work.at[bucket], stepped)
        if population.method[work.row[bucket]] not in (M_PS, M_RS):
            work.load[bucket] = 0.0
    coming = work.sorted[:buckets]
    list_schedule(coming, work.at, work.gate, work.load, work.heap, work.order)


def waits_for_step(population: PopulationArrays, row: int) -> bool:
    """Whether a gather carries new values: an owner or a shard is updated before it."""
    method, option = population.method[row], population.option[row]
    if method == M_PS:
        return not population.returns_gradients[option]
    sharded: bool = population.sharded[option]
    return method == M_RS and sharded


def returns_gradients(population: PopulationArrays, row: int) -> bool:
    """Whether a gather carries gradients that an owner has summed."""
    found: bool = population.returns_gradients[population.option[row]]
    return population.method[row] == M_PS and found


def leaves_when_idle(population: PopulationArrays, row: int) -> bool:
    """Whether a gather only waits for an idle link."""
    return not (waits_for_step(population, row) or returns_gradients(population, row))


def returned_order(
    population: PopulationArrays, work: Scratch, buckets: int, explicit: bool
) -> int:
    """Write the gathers that owners send at once to the end of work.messages; return their number.

    They use links in the opposite direction to the messages that the owners wait for. Of those
    that have arrived, the nearest use goes first, or they are in the order of their reductions.
    """
    returned = 0
    for position in range(buckets):
        bucket = work.order[position]
        if returns_gradients(population, work.row[bucket]):
            work.sorted[returned] = bucket
            returned += 1
    order = work.messages[2 * buckets - returned : 2 * buckets]
    coming = work.sorted[:returned]
    if not explicit:
        list_schedule(coming, work.at, work.gate, work.load, work.heap, order)
    for place in range(returned):
        order[place] = 2 * (coming[place] if explicit else order[place]) + 1
    return returned


def idle_order(
    domain: DomainArrays, population: PopulationArrays, index: int, work: Scratch, buckets: int
) -> None:
    """All messages in one order, into work.messages: reductions in theirs and, while none of them
    is ready, gathers whose reduction has arrived, the nearest use first (in an explicit order:
    as they were sent). Those that carry new values wait for the end of backward, when all
    reductions are ready and go first. The gradients that owners return are last, for they queue by
    themselves: see `returned_order`.
    """
    stepped = domain.ready_seconds[-1]
    explicit = population.order[index] == O_EXPLICIT
    returned = returned_order(population, work, buckets, explicit)
    now = 0.0
    sent = 0
    looked_at = 0  # of the reductions sent, for those that wait for `step()`
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
            work.messages[place] = 2 * bucket
            place += 1
            if leaves_when_idle(population, work.row[bucket]):
                nearness = sent if explicit else work.gate[bucket]
                size = push_heap(work.heap, size, nearness * buckets + bucket)
            sent += 1
        elif size > 0:
            bucket = pop_heap(work.heap, size) % buckets
            size -= 1
            work.messages[place] = 2 * bucket + 1
            place += 1
            if population.method[work.row[bucket]] in (M_PS, M_RS):
                now += work.load[bucket]
        elif looked_at < sent:
            now = min(ready, stepped)
        else:
            now = ready


def order_messages(
    domain: DomainArrays, population: PopulationArrays, index: int, work: Scratch, buckets: int
) -> None:
    """Reductions and gathers of all buckets in the order in which they are sent, into
    work.messages: twice the bucket, plus one of a gather."""
    reduction_order(domain, population, index, work, buckets)
    if population.idle_gather[index]:
        idle_order(domain, population, index, work, buckets)
        return
    for place in range(buckets):
        work.messages[place] = 2 * work.order[place]
    gather_order(domain, population, index, work, buckets)
    for place in range(buckets):
        work.messages[buckets + place] = 2 * work.order[place] + 1
