"""What the simulator knows of a backend, which moves the messages of plans between ranks."""

from collections.abc import Callable
from dataclasses import dataclass

from autosync.codes import Op
from autosync.simulator.backends.message_edges import Edges, Team, all_to_all, star

EdgesOf = Callable[[Op, Team, int], Edges]
"""The traffic of an operation within a team, from or to a root. A server may stand outside the team
(a dedicated host)."""


@dataclass(frozen=True, slots=True)
class BackendModel:
    """collective_edges: of the operations that the backend runs itself.
    in_flight: collectives at once per channel.
    one_connection_a_pair: each pair of ranks has one connection, and messages share a link by their
        connections; else by the rate that each could take.
    streams: operations of which any number is in flight, since the runtime sends and receives by
        itself; messages between the same ranks follow each other on their connection.
    stepwise: operations that send, wait and add up segment by segment, so that neither the
        latencies of their steps nor their sums come before their bytes: they lie between them.
    starts_on_host: an engine's time for a message keeps the processors of hosts, which work on one
        message at a time in the order of issue; else it passes ahead of the message.
    felt_early: compute feels a message from its startup on, as where a kernel on the device waits
        for its peers; else from its bytes on.
    ranks_add_up: operations that a rank receives apart, to add up by itself.
    sharded_copies: `fully_shard` gathers into, and reduces in, a copy of its own.
    always_tcp: whatever the cluster's latency says.
    one_order: a rank runs its messages of fixed size one after another, in the plan's order, those
        that wait for `step()` last (`runtime/layout/records.py`); else each channel by itself.
    owners_reduce: a push to a rank is the backend's reduce, a pull from one its broadcast; else
        the runtime sends and receives by itself.
    descriptor: the number of the backend among the figures that describe a domain to models.
    """

    collective_edges: EdgesOf
    in_flight: int
    one_connection_a_pair: bool
    streams: tuple[Op, ...]
    stepwise: tuple[Op, ...]
    starts_on_host: bool
    felt_early: bool
    ranks_add_up: tuple[Op, ...]
    sharded_copies: bool
    always_tcp: bool
    one_order: bool
    owners_reduce: bool
    descriptor: float

    def carried_as(self, operation: Op, root_is_rank: bool) -> Op:
        """The operation that moves a message of `operation`."""
        if self.owners_reduce and root_is_rank:
            return {Op.PUSH: Op.REDUCE, Op.PULL: Op.BROADCAST}.get(operation, operation)
        return operation

    def edges_of(self, operation: Op, team: Team, root: int) -> Edges:
        """The traffic of any operation, as it is carried. Messages of touched rows and of factors
        go from every rank to every other, those of servers to and from their root, whatever the
        backend."""
        match operation:
            case Op.SPARSE_ALL_GATHER | Op.FACTOR_ALL_GATHER:
                return all_to_all(team, 1.0, len(team) - 1.0)
            case Op.PUSH | Op.SPARSE_PUSH:
                return star(team, root, inwards=True)
            case Op.PULL | Op.SPARSE_PULL:
                return star(team, root, inwards=False)
        return self.collective_edges(operation, team, root)
