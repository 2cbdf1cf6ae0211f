"""The chain of messages that synchronizes one bucket, for every synchronizer.

Like `compiler_kernels`, in the subset of Python that numba compiles.
"""

import numpy as np
from numpy.typing import NDArray

from autosync.plan.compiler_arrays import (
    DomainArrays,
)
from autosync.plan.compiler_kernels import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    CH_BROADCAST,
    CH_GATHER,
    CH_GRADIENT,
    CH_PULL,
    CH_PUSH,
    CH_REDUCE,
    CH_VALUE,
    FACTOR_ALL_GATHER,
    LEAVES_VALUES,
    M_AG,
    M_FACTORS,
    M_PS,
    M_RS,
    PULL,
    PUSH,
    REDUCE,
    REDUCE_SCATTER,
    SPARSE_ALL_GATHER,
    SPARSE_PULL,
    SPARSE_PUSH,
    T_ALL,
    T_LEADERS,
    T_NODES,
    T_SERVER,
    U_NONE,
    U_OWNER,
    U_REPLICATED,
    U_SHARD,
)


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
    domain: DomainArrays,
    method: int,
    sparse: bool,
    ddp: bool,
    algorithm: int,
    ring_teams: int,
    hierarchical: bool,
    sharded: bool,
    returns_gradients: bool,
    server: int,
    low_rank: bool,
    idle_gather: bool,
    stages: NDArray[np.int32],
) -> int:
    """The messages that synchronize one bucket; returns how many.

    stages i32[STAGES, 6]: operation, channel, root, teams, update, whether it starts a second
    half (which an overlapped schedule sends in order of next use). low_rank: an all-reduce of P,
    which every rank makes orthogonal before its part of Q exists, and one of Q. idle_gather: of
    an all-gather that leaves while the wire is idle.
    """
    if method == M_FACTORS:
        put(stages, 0, FACTOR_ALL_GATHER, CH_GRADIENT, -1, T_ALL, U_REPLICATED, 0)
        return 1
    if method == M_AG or (ddp and sparse):
        put(stages, 0, SPARSE_ALL_GATHER, CH_GRADIENT, -1, T_ALL, U_REPLICATED, 0)
        return 1
    if method == M_RS:
        put(stages, 0, REDUCE_SCATTER, CH_GRADIENT, -1, T_ALL, U_SHARD if sharded else U_NONE, 0)
        last = U_NONE if sharded else U_REPLICATED
        put(stages, 1, ALL_GATHER, CH_GATHER if idle_gather else CH_VALUE, -1, T_ALL, last, 1)
        return 2
    if method == M_PS:
        if sparse:
            put(stages, 0, SPARSE_PUSH, CH_PUSH, server, T_ALL, U_OWNER, 0)
            put(stages, 1, SPARSE_PULL, CH_PULL, server, T_ALL, U_NONE, 1)
            return 2
        first, last = (U_NONE, U_REPLICATED) if returns_gradients else (U_OWNER, U_NONE)
        if not (hierarchical and domain.grouped):
            put(stages, 0, PUSH, CH_PUSH, server, T_ALL, first, 0)
            put(stages, 1, PULL, CH_PULL, server, T_ALL, last, 1)
            return 2
        put(stages, 0, REDUCE, CH_REDUCE, server, T_NODES, U_NONE, 0)
        put(stages, 1, PUSH, CH_PUSH, server, T_SERVER + server, first, 0)
        put(stages, 2, PULL, CH_PULL, server, T_SERVER + server, U_NONE, 1)
        put(stages, 3, BROADCAST, CH_BROADCAST, server, T_NODES, last, 0)
        return 4
    if algorithm == 1:
        put(stages, 0, REDUCE, CH_GRADIENT, -1, T_ALL, U_NONE, 0)
        put(stages, 1, BROADCAST, CH_VALUE, -1, T_ALL, U_REPLICATED, 0)
        return 2
    if algorithm == 2 and domain.grouped:
        put(stages, 0, REDUCE, CH_REDUCE, -1, T_NODES, U_NONE, 0)
        count = 1
        if domain.nodes > 1:
            put(stages, 1, ALL_REDUCE, CH_GRADIENT, -1, T_LEADERS, U_NONE, 0)
            count = 2
        put(stages, count, BROADCAST, CH_BROADCAST, -1, T_NODES, U_REPLICATED, 0)
        return count + 1
    if low_rank:
        put(stages, 0, ALL_REDUCE, CH_GRADIENT, -1, ring_teams, U_NONE, 0)
        put(stages, 1, ALL_REDUCE, CH_VALUE, -1, ring_teams, U_REPLICATED, 0)
        return 2
    put(stages, 0, ALL_REDUCE, CH_GRADIENT, -1, ring_teams, U_REPLICATED, 0)
    return 1


def second_half_stage(stages: NDArray[np.int32], count: int, overlap: bool) -> int:
    """The first message of a chain that its second half sends; `count` where there is none.

    A first half ends where the rest must wait: for `step()` when an owner or a shard updates, or
    for the next forward pass when a reduce-scatter overlaps it.
    """
    for stage in range(1, count):
        waits = stages[stage - 1, 4] in LEAVES_VALUES
        if stages[stage, 5] == 1 and (waits or overlap):
            return stage
    return count
