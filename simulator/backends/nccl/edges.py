"""NCCL, between GPUs."""

from autosync.codes import Op
from autosync.simulator.backends.backend import BackendModel
from autosync.simulator.backends.message_edges import Edges, Team, chain, from_root, ring


def nccl_edges(operation: Op, team: Team, root: int) -> Edges:
    """Rings, and pipelined chains for reduce and broadcast."""
    part = (len(team) - 1) / len(team)
    match operation:
        case Op.ALL_REDUCE:
            return ring(team, 2 * part, 2 * part, 2 * (len(team) - 1))
        case Op.REDUCE:
            return chain(from_root(team, root), inwards=True)
        case Op.BROADCAST:
            return chain(from_root(team, root), inwards=False)
    return ring(team, part, part, len(team) - 1)


NCCL = BackendModel(
    nccl_edges,
    in_flight=1,  # the operations of a communicator run one by one
    one_connection_a_pair=False,
    streams=(),
    stepwise=(),
    starts_on_host=False,
    felt_early=True,
    ranks_add_up=(),
    sharded_copies=False,
    always_tcp=False,
    one_order=True,
    owners_reduce=True,
    descriptor=1.0,
)
