"""gloo, between processors."""

from autosync.codes import Op
from autosync.simulator.backends.backend import BackendModel
from autosync.simulator.backends.message_edges import (
    Edges,
    Team,
    all_to_all,
    binomial_tree,
    from_root,
    ring,
    ring_to_root,
)

SEGMENT_BYTES = 1 << 20
"""Of a ring: gloo sends a message in segments of at most so many bytes (gloo/allreduce.cc)."""
WAITS_PER_SEGMENT = 0.674
"""Latencies that each segment of an all-reduce waits out, besides those of the steps: fitted to 24
all-reduces on 4 to 32 nodes under delays of 1 to 10 ms; 0.670 to 0.681 with any number of nodes
left out (`python -m benchmarks.published.gloo_messages`)."""


def gloo_edges(operation: Op, team: Team, root: int) -> Edges:
    """All-reduce is a ring that waits for its segments, reduce a ring reduce-scatter that is then
    gathered at the root, broadcast a binomial tree (its sources); the runtime's reduce-scatter is
    an all-to-all, because gloo's own moves an all-reduce's bytes (measured), and its all-gather
    sends from every rank to every other.
    """
    size = len(team)
    match operation:
        case Op.ALL_REDUCE:
            weight, steps = 2 * (size - 1) / size, 2 * (size - 1)
            return ring(team, weight, weight, steps, weight * WAITS_PER_SEGMENT / SEGMENT_BYTES)
        case Op.REDUCE:
            return ring_to_root(from_root(team, root))
        case Op.BROADCAST:
            return binomial_tree(from_root(team, root))
    return all_to_all(team, 1 / size, (size - 1) / size)


GLOO = BackendModel(
    gloo_edges,
    in_flight=2,  # operations of a process group, first come first served (measured)
    one_connection_a_pair=True,
    streams=(Op.ALL_GATHER, Op.PUSH, Op.PULL, Op.SPARSE_PUSH, Op.SPARSE_PULL),
    stepwise=(Op.ALL_REDUCE, Op.REDUCE),  # gloo/allreduce.cc, gloo/reduce.cc: two segments at once
    starts_on_host=True,
    felt_early=False,
    ranks_add_up=(Op.REDUCE_SCATTER, Op.PUSH),
    sharded_copies=True,
    always_tcp=True,
    one_order=False,
    owners_reduce=False,
    descriptor=0.0,
)
