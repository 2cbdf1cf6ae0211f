"""The kinds of messages that plans hold, and whose cost each pays."""

from autosync.cluster import Cluster, MessageKind
from autosync.codes import Op
from autosync.plan.plan_table import ALL_RANKS, FIRST_SERVER, LEADERS, NODE_TEAMS, TeamTable

COST_KIND: dict[Op, MessageKind] = {
    Op.ALL_REDUCE: "all_reduce",
    Op.REDUCE: "reduce",
    Op.BROADCAST: "broadcast",
    Op.REDUCE_SCATTER: "all_to_all",
    Op.ALL_GATHER: "all_gather",
    Op.PUSH: "send_recv",
    Op.PULL: "send_recv",
    Op.SPARSE_ALL_GATHER: "all_gather",
    Op.FACTOR_ALL_GATHER: "all_gather",
    Op.SPARSE_PUSH: "send_recv",
    Op.SPARSE_PULL: "send_recv",
}
"""Whose fitted cost a message pays. The runtime's reduce-scatter on gloo is an all-to-all."""

SERVER_OPERATIONS = tuple(op for op in Op if op.to_owner or op.from_owner)

ROUNDS_OF_ROWS = 2
"""Of a message of touched rows, whose number only the sender knows: a header, and the payload that
is asked for when the header is there (`runtime.transport.ragged`). Each is a message to the hosts
and to the links. Factors travel so, too, but what a round more would add is not found in what
their strategies measured (docs/simulator.md)."""


def message_classes(cluster: Cluster, teams: TeamTable) -> list[tuple[Op, int, int]]:
    """(operation, teams, root) of every message that the compiler emits (its kernel `chain`, and
    `sharded_messages` and extensions, whose teams follow the explicit rings)."""
    rings = range(FIRST_SERVER + cluster.servers, len(teams))
    apart = [team for team in rings if sum(map(len, teams[team])) < cluster.world_size]
    groups = [team for team in rings if len(teams[team]) > 1]
    found = [(Op.ALL_REDUCE, team, -1) for team in (ALL_RANKS, LEADERS, *rings)]
    everyone = (Op.REDUCE_SCATTER, Op.ALL_GATHER, Op.SPARSE_ALL_GATHER, Op.FACTOR_ALL_GATHER)
    found += [(operation, ALL_RANKS, -1) for operation in everyone]
    found += [(Op.SPARSE_ALL_GATHER, team, -1) for team in apart]
    for operation in (Op.REDUCE_SCATTER, Op.ALL_GATHER):
        found += [(operation, team, -1) for team in groups]
    for operation in (Op.REDUCE, Op.BROADCAST):
        found.append((operation, ALL_RANKS, -1))
        found += [(operation, NODE_TEAMS, root) for root in range(-1, cluster.servers)]
    for server in range(cluster.servers):
        found += [(operation, ALL_RANKS, server) for operation in SERVER_OPERATIONS]
        found += [(operation, FIRST_SERVER + server, server) for operation in (Op.PUSH, Op.PULL)]
    return found
