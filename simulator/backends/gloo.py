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


def gloo_edges(operation: Op, team: Team, root: int) -> Edges:
    """All-reduce is a ring, reduce is a ring reduce-scatter gathered at the root, broadcast a
    binomial tree (its sources); the runtime's reduce-scatter is an all-to-all, because gloo's own
    moves an all-reduce's bytes (measured), and its all-gather sends from every rank to every other.
    """
    size = len(team)
    match operation:
        case Op.ALL_REDUCE:
            return ring(team, 2 * (size - 1) / size, 2 * (size - 1) / size, 2 * (size - 1))
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
    owners_caveat="",
    descriptor=0.0,
)
