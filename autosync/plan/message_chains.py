"""The messages of a plan: the chain that synchronizes one bucket, for every synchronizer.

In the subset of Python that numba compiles; see `bucket_cutting`.
"""

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Channel, Op, Update
from autosync.plan.bucket_cutting import cut_buckets
from autosync.plan.compiler_arrays import (
    M_AG,
    M_FACTORS,
    M_PS,
    M_RS,
    O_DDP,
    DomainArrays,
    PlanArrays,
    PopulationArrays,
    Scratch,
)
from autosync.plan.message_order import order_messages
from autosync.plan.plan_table import ALL_RANKS, FIRST_SERVER, LEADERS, NODE_TEAMS

(ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, PUSH, PULL, SPARSE_ALL_GATHER,
 FACTOR_ALL_GATHER, SPARSE_PUSH, SPARSE_PULL) = map(int, Op)  # fmt: skip
CH_GRADIENT, CH_VALUE, CH_PUSH, CH_PULL, CH_REDUCE, CH_BROADCAST, CH_GATHER = map(int, Channel)
U_NONE, U_REPLICATED, U_OWNER, U_SHARD = map(int, Update)
LEAVES_VALUES = tuple(int(update) for update in Update if update.leaves_values)


def put(
    stages: NDArray[np.int32],
    stage: int,
    operation: int,
    channel: int,
    root: int,
    teams: int,
    update: int,
    second: int,
) -> None:
    stages[stage, 0] = operation
    stages[stage, 1] = channel
    stages[stage, 2] = root
    stages[stage, 3] = teams
    stages[stage, 4] = update
    stages[stage, 5] = second


def chain(
    method: int,
    server: int,
    sparse: bool,
    algorithm: int,
    ring: int,
    hierarchical: bool,
    sharded: bool,
    returns_gradients: bool,
    gather: int,
    low_rank: bool,
    domain_nodes: int,
    stages: NDArray[np.int32],
) -> int:
    """The messages that synchronize one bucket; returns how many.

    stages i32[STAGES, 6]: operation, channel, root, teams, update, whether it starts the
    gather (which an overlapped schedule sends in order of next use). hierarchical: within nodes of
    several ranks first. gather: the channel of an all-gather. low_rank: an all-reduce of P, which
    every rank makes orthogonal before its part of Q exists, and one of Q.

    It takes numbers and not the tuples of arrays that they are from: those would be copied for each
    call of compiled code, which took a third of its time.
    """
    if method == M_FACTORS:
        put(stages, 0, FACTOR_ALL_GATHER, CH_GRADIENT, -1, ALL_RANKS, U_REPLICATED, 0)
        return 1
    if method == M_AG:
        put(stages, 0, SPARSE_ALL_GATHER, CH_GRADIENT, -1, ALL_RANKS, U_REPLICATED, 0)
        return 1
    if method == M_RS:
        first, last = (U_SHARD, U_NONE) if sharded else (U_NONE, U_REPLICATED)
        put(stages, 0, REDUCE_SCATTER, CH_GRADIENT, -1, ALL_RANKS, first, 0)
        put(stages, 1, ALL_GATHER, gather, -1, ALL_RANKS, last, 1)
        return 2
    if method == M_PS:
        if sparse:
            put(stages, 0, SPARSE_PUSH, CH_PUSH, server, ALL_RANKS, U_OWNER, 0)
            put(stages, 1, SPARSE_PULL, CH_PULL, server, ALL_RANKS, U_NONE, 1)
            return 2
        first, last = (U_NONE, U_REPLICATED) if returns_gradients else (U_OWNER, U_NONE)
        if not hierarchical:
            put(stages, 0, PUSH, CH_PUSH, server, ALL_RANKS, first, 0)
            put(stages, 1, PULL, CH_PULL, server, ALL_RANKS, last, 1)
            return 2
        put(stages, 0, REDUCE, CH_REDUCE, server, NODE_TEAMS, U_NONE, 0)
        put(stages, 1, PUSH, CH_PUSH, server, FIRST_SERVER + server, first, 0)
        put(stages, 2, PULL, CH_PULL, server, FIRST_SERVER + server, U_NONE, 1)
        put(stages, 3, BROADCAST, CH_BROADCAST, server, NODE_TEAMS, last, 0)
        return 4
    if algorithm == 1:
        put(stages, 0, REDUCE, CH_GRADIENT, -1, ALL_RANKS, U_NONE, 0)
        put(stages, 1, BROADCAST, CH_VALUE, -1, ALL_RANKS, U_REPLICATED, 0)
        return 2
    if algorithm == 2 and hierarchical:
        put(stages, 0, REDUCE, CH_REDUCE, -1, NODE_TEAMS, U_NONE, 0)
        count = 1
        if domain_nodes > 1:
            put(stages, 1, ALL_REDUCE, CH_GRADIENT, -1, LEADERS, U_NONE, 0)
            count = 2
        put(stages, count, BROADCAST, CH_BROADCAST, -1, NODE_TEAMS, U_REPLICATED, 0)
        return count + 1
    if low_rank:
        put(stages, 0, ALL_REDUCE, CH_GRADIENT, -1, ring, U_NONE, 0)
        put(stages, 1, ALL_REDUCE, CH_VALUE, -1, ring, U_REPLICATED, 0)
        return 2
    put(stages, 0, ALL_REDUCE, CH_GRADIENT, -1, ring, U_REPLICATED, 0)
    return 1


def gather_stage(stages: NDArray[np.int32], count: int, overlap: bool) -> int:
    """The first message of a chain's gather; `count` where there is none.

    A reduction ends where the rest must wait: for `step()` when an owner or a shard updates, or
    for the next forward pass when a reduce-scatter overlaps it.
    """
    for stage in range(1, count):
        waits = stages[stage - 1, 4] in LEAVES_VALUES
        if stages[stage, 5] == 1 and (waits or overlap):
            return stage
    return count


def emit(
    domain: DomainArrays,
    population: PopulationArrays,
    index: int,
    out: PlanArrays,
    work: Scratch,
    base: int,
    message: int,
    bucket: int,
    is_gather: bool,
) -> int:
    """Append the reduction or the gather of one bucket from `message` on; returns the next free
    message.

    base: the number of the strategy's first bucket.
    """
    row = work.row[bucket]
    option = population.option[row]
    method = int(population.method[row])
    sparse = domain.sparse[population.variable[row]]
    if population.order[index] == O_DDP and sparse and method != M_FACTORS:
        method = M_AG
    algorithm = population.algorithm[option]
    low_rank = work.second[bucket] > 0
    stages = work.stages
    count = chain(
        method,
        population.server[row],
        sparse,
        algorithm,
        population.ring[option],
        domain.grouped and (population.hierarchical[option] or algorithm == 2),
        population.sharded[option],
        population.returns_gradients[option],
        CH_GATHER if population.idle_gather[index] else CH_VALUE,
        low_rank,
        domain.nodes,
        stages,
    )
    overlap = population.overlap[index]
    encoding = population.encoding[option]
    split = gather_stage(stages, count, overlap)
    values = False
    for stage in range(count):
        if (stage >= split) == is_gather:
            values = values or (stage > 0 and stages[stage - 1, 4] in LEAVES_VALUES)
            out.operation[message] = stages[stage, 0]
            out.channel[message] = stages[stage, 1]
            out.root[message] = stages[stage, 2]
            out.ranks[message] = stages[stage, 3]
            out.update[message] = stages[stage, 4]
            out.encoding[message] = 0 if values else encoding
            out.carries_values[message] = values
            out.wire_bytes[message] = work.value[bucket] if values else work.wire[bucket]
            if low_rank:
                out.wire_bytes[message] = work.second[bucket]
                if stage == 0:
                    out.wire_bytes[message] = work.wire[bucket] - work.second[bucket]
            out.ready[message] = work.ready[bucket] if stage == 0 else -1
            out.after[message] = work.last[bucket] if stage > 0 else -1
            out.gate[message] = work.gate[bucket] if overlap else -1
            out.bucket[message] = base + bucket
            work.last[bucket] = message - out.first[index]
            message += 1
    return message


def compile_loop(
    domain: DomainArrays, population: PopulationArrays, out: PlanArrays, work: Scratch
) -> None:
    """Fill `out` for every strategy; its `first` and `bucket_first` tell how far."""
    base = 0
    message = 0
    out.first[0] = 0
    out.bucket_first[0] = 0
    for index in range(len(population.order)):
        buckets = cut_buckets(domain, population, index, out, work, base, out.bucket_first[base])
        order_messages(domain, population, index, work, buckets)
        for place in range(2 * buckets):
            number = work.messages[place]
            message = emit(
                domain, population, index, out, work, base, message, number // 2, number % 2 == 1
            )
        out.first[index + 1] = message
        base += buckets
    out.first[len(population.order)] = message
