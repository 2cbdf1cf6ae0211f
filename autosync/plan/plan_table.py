"""PlanTable: the plans of many strategies as arrays."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster
from autosync.domain import Domain
from autosync.population import Option

Teams = tuple[tuple[int, ...], ...]
"""Disjoint sets of ranks that each perform a message's operation among themselves."""

ALL_RANKS, NODE_TEAMS, LEADERS, FIRST_SERVER = 0, 1, 2, 3
"""Team indices every PlanTable starts with; FIRST_SERVER + s is the leaders with server s in
place of its node's leader; the explicit rings of the population's options follow."""


@dataclass(frozen=True, slots=True)
class TeamTable(Sequence[Teams]):
    """The teams of plans, in the order that `FIRST_SERVER` says. Those with a server are made when
    they are asked for: together they have nodes times servers members.

    everyone, nodes: teams of all ranks, and of the ranks of each node that has several. leaders:
    the first rank of each node. places: of each server the place of its node among the leaders,
    their number where the node has no rank. added: rings of options, and what engines and
    extensions add.
    """

    everyone: Teams
    nodes: Teams
    leaders: tuple[int, ...]
    places: tuple[int, ...]
    added: tuple[Teams, ...] = ()

    def __len__(self) -> int:
        return FIRST_SERVER + len(self.places) + len(self.added)

    @overload
    def __getitem__(self, index: int) -> Teams: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Teams, ...]: ...

    def __getitem__(self, index: int | slice) -> Teams | tuple[Teams, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = range(len(self))[index]
        if place < FIRST_SERVER:
            return (self.everyone, self.nodes, (self.leaders,))[place]
        server = place - FIRST_SERVER
        if server >= len(self.places):
            return self.added[server - len(self.places)]
        at = self.places[server]
        return ((*self.leaders[:at], server, *self.leaders[at + 1 :]),)

    def with_added(self, teams: Iterable[Teams]) -> "TeamTable":
        """The same with more at its end."""
        return replace(self, added=(*self.added, *teams))


MESSAGE_COLUMNS = {
    "operation": np.uint8,
    "channel": np.uint8,
    "root": np.int16,
    "ranks": np.uint16,
    "encoding": np.uint8,
    "carries_values": np.bool_,
    "wire_bytes": np.int64,
    "ready": np.int32,
    "after": np.int64,
    "gate": np.int32,
    "before": np.int32,
    "update": np.uint8,
    "bucket": np.int64,
}
"""Of a PlanTable, the columns with one entry a message, and their types."""


@dataclass(frozen=True, slots=True)
class PlanTable:
    """Plans of n strategies; M messages, C buckets, P pieces in all.

    A row is a message, in issue order: on every channel, and over all of them, a message comes
    after everything it waits for, so issuing in row order cannot deadlock.

    teams: table of teams; a message with several teams runs in each at once.
    first i64[n + 1]: strategy i has the messages first[i]:first[i + 1].
    operation u8[M]: `codes.Op`. channel u8[M]: `codes.Channel`. root i16[M]: the server, reducing
        or sending rank; -1: the first of each team. ranks u16[M]: index into teams.
    encoding u8[M]: `codes.ENCODINGS`, or POWERSGD + rank.
    carries_values bool[M]: new values rather than gradients or sums. The first such message of a
        bucket waits for the update before it, and so for `step()`; the others follow it.
    wire_bytes i64[M]: the encoded payload that one replica contributes (per-rank bytes on the
        links follow from the operation).
    ready i32[M]: position in the gradient-ready order of the last gradient it waits for; -1 for
        messages that wait for another message only.
    after i64[M]: the message of the same strategy it waits for, counted from first[i], or -1.
    gate i32[M]: the forward operation that waits for it, -1 when `step()` itself waits.
    before i32[M]: of parameters gathered for backward alone (`fully_shard`): the position, in the
        gradient-ready order, of the first gradient whose backward waits for it. Their `ready` is
        the last gradient before the backward of the unit that asks for it. -1 for all others.
    update u8[M]: `codes.Update`.
    bucket i64[M]: index into buckets; the messages of one chain share theirs.
    bucket_first i64[C + 1], piece_row i64[P], piece_start i64[P], piece_stop i64[P]: bucket c
        is the elements piece_start:piece_stop of the shards (rows of the population, counted
        from the strategy's first) piece_row, for the pieces bucket_first[c]:bucket_first[c+1].
    """

    teams: TeamTable
    first: NDArray[np.int64]
    operation: NDArray[np.uint8]
    channel: NDArray[np.uint8]
    root: NDArray[np.int16]
    ranks: NDArray[np.uint16]
    encoding: NDArray[np.uint8]
    carries_values: NDArray[np.bool_]
    wire_bytes: NDArray[np.int64]
    ready: NDArray[np.int32]
    after: NDArray[np.int64]
    gate: NDArray[np.int32]
    before: NDArray[np.int32]
    update: NDArray[np.uint8]
    bucket: NDArray[np.int64]
    bucket_first: NDArray[np.int64]
    piece_row: NDArray[np.int64]
    piece_start: NDArray[np.int64]
    piece_stop: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def messages(self) -> int:
        return len(self.operation)


def explicit_rings(options: tuple[Option, ...]) -> list[tuple[int, ...]]:
    """The distinct device orders among the options, in order of appearance."""
    return list(dict.fromkeys(option.device_order for option in options if option.device_order))


def team_table(domain: Domain, options: tuple[Option, ...]) -> TeamTable:
    """The teams that plans of this domain refer to; see `FIRST_SERVER` for their order."""
    rings = tuple((order,) for order in explicit_rings(options))
    return cluster_teams(domain.cluster).with_added(rings)


def cluster_teams(cluster: Cluster) -> TeamTable:
    """The teams that plans of any domain on this cluster can refer to."""
    node_of_server = cluster.node_of_server().tolist()
    members: dict[int, list[int]] = {}
    for rank in range(cluster.world_size):
        members.setdefault(node_of_server[rank], []).append(rank)
    place_of_node = {node: place for place, node in enumerate(members)}
    return TeamTable(
        everyone=(tuple(range(cluster.world_size)),),
        nodes=tuple(tuple(ranks) for ranks in members.values() if len(ranks) > 1),
        leaders=tuple(ranks[0] for ranks in members.values()),
        places=tuple(place_of_node.get(node, len(members)) for node in node_of_server),
    )
