"""What messages cost on a cluster: startup, and the time they hold each link.

Every message that plans of a cluster can hold is of some kind (operation, teams, root). A kind
has a startup and, per byte that one replica contributes, the seconds it occupies each resource:
each NIC's two directions, each device's port to the others of its node, and stated links.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autosync.cluster import Cluster, MessageCost, MessageKind
from autosync.codes import Op
from autosync.errors import NotSupported
from autosync.plan.plan_table import ALL_RANKS, FIRST_SERVER, LEADERS, NODE_TEAMS, PlanTable, Teams
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.alike_resources import number_equal_rows
from autosync.simulator.cost.link_resources import load_of, resources_of
from autosync.simulator.cost.message_startup import rounds_of, startup_seconds
from autosync.simulator.cost.message_traffic import (
    SERVER_OPERATIONS,
    MessageTraffic,
    TeamTraffic,
)

F64 = NDArray[np.float64]

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


@dataclass(frozen=True, slots=True)
class Network:
    """K kinds of messages over R resources.

    kind i16[11, teams, servers + 1]: by operation, teams and root + 1 (see `kind_of`); -1 for
        messages that no plan holds.
    startup_seconds f64[K]; copy_seconds_per_byte f64[K]: an engine's own copies.
    host_seconds, host_seconds_per_byte f64[K]: for which a message keeps the hosts' processors.
    link_seconds f64[K]: for which a message holds its links besides its bytes.
    seconds_per_byte f64[K]: of a message alone: the time at its slowest resource, or on its
        slowest connection where connections have a rate of their own.
    equation_seconds_per_byte f64[K]: the network term of equation 2 (servers: the sum over
        workers) and equation 3 (collectives: over the lowest bandwidth).
    server i16[K]: the owner a kind works for, -1 for collectives.
    load f64[K, R]: seconds per byte that a resource is held. resources: their names.
    utilization f64[K, U]: the same over seconds_per_byte, in [0, 1]. flows f64[K, U]: pairs of
        ranks between which a message flows over each resource. Equal columns once.
    ports bool[U]: columns that are devices' ports.
    in_flight: collectives at once per channel. engine_seconds: an engine's for each message.
    """

    kind: NDArray[np.int16]
    operations: NDArray[np.uint8]
    startup_seconds: F64
    copy_seconds_per_byte: F64
    host_seconds: F64
    host_seconds_per_byte: F64
    link_seconds: F64
    seconds_per_byte: F64
    equation_seconds_per_byte: F64
    server: NDArray[np.int16]
    load: F64
    resources: tuple[str, ...]
    utilization: F64
    flows: F64
    ports: NDArray[np.bool_]
    in_flight: int
    engine_seconds: float

    def kinds_of(self, plans: PlanTable) -> NDArray[np.int16]:
        """The kind of every message of the plans, `(messages,)`."""
        return self.kind_of(plans.operation, plans.ranks, plans.root)

    def kind_of(
        self, operation: ArrayLike, teams: ArrayLike, root: ArrayLike = -1
    ) -> NDArray[np.int16]:
        """The kinds of messages by operation, teams and root (-1: none); all broadcast."""
        places = (
            np.asarray(each, dtype=np.int64)
            for each in (operation, teams, np.add(root, 1, dtype=np.int64))
        )
        kinds: NDArray[np.int16] = self.kind[tuple(places)]
        return kinds

    @property
    def message_seconds(self) -> F64:
        """What a message of each kind costs besides its bytes, `(K,)`."""
        result: F64 = self.startup_seconds + self.host_seconds + self.engine_seconds
        return result


def link_seconds_per_byte(
    cluster: Cluster, operation: Op, team: tuple[int, ...], root: int = -1
) -> float:
    """How long one message within a team holds its slowest resource, per byte of a replica's."""
    edges = backend_of(cluster).edges_of(operation, team, root)
    return float(load_of(edges, resources_of(cluster)).max())


class _Row(NamedTuple):
    """What `Network` holds of one kind besides its tables. connection: seconds per byte of its
    slowest connection. sends: how many one resource sees at the most. travels: whether anything
    does, which is not so where one rank holds a placed module."""

    startup_seconds: float
    copy_seconds_per_byte: float
    equation: float
    server: int
    operation: Op
    connection: float
    sends: float
    travels: bool


@lru_cache(maxsize=8)
def network_of(cluster: Cluster, teams: tuple[Teams, ...]) -> Network:
    """The costs of every message kind that plans over these teams can hold."""
    where = resources_of(cluster)
    kind = np.full((len(Op), len(teams), cluster.servers + 1), -1, dtype=np.int16)
    kinds = _kinds(cluster, teams)
    if len(kinds) > np.iinfo(kind.dtype).max:
        raise NotSupported(
            f"{cluster.name} has {cluster.servers} servers, whose messages are of {len(kinds)} "
            f"kinds; at most {np.iinfo(kind.dtype).max} can be told apart.",
            thing="cluster",
            value=cluster.servers,
            remedy="Describe at most 4,000 devices.",
        )
    load, flows = np.empty((2, len(kinds), len(where.rate)))
    rows: list[_Row] = []
    on_teams, explicit = TeamTraffic(cluster, where), FIRST_SERVER + cluster.servers
    for place, (operation, team, root) in enumerate(kinds):
        kind[operation, team, root + 1] = place
        travels = team < explicit or max(map(len, teams[team])) > 1
        traffic = on_teams.together(operation, teams[team], root)
        load[place], flows[place] = traffic.load, traffic.flows
        rows.append(_row(cluster, traffic, operation, teams[team], root, travels))
    alone = np.maximum(load.max(axis=1), [row.connection for row in rows])
    share = load / np.where(alone > 0, alone, 1.0)[:, None]
    column = number_equal_rows(share.T, flows.T)
    first = np.unique(column, return_index=True)[1]
    held = share.max(axis=0)[first] > 0
    ports = np.bincount(column, weights=where.ports) > 0
    first, ports = first[held], ports[held]
    engine = cluster.cost("engine")
    copies = np.array([row.copy_seconds_per_byte for row in rows]) + engine.seconds_per_byte
    operations = [row.operation for row in rows]
    nothing = MessageCost("engine", 0.0)
    hosts = [cluster.cost(COST_KIND[row.operation]) if row.travels else nothing for row in rows]
    rounds = np.array([rounds_of(row.operation) for row in rows], dtype=np.float64)
    return Network(
        kind=kind,
        operations=np.array(operations, dtype=np.uint8),
        startup_seconds=np.array([row.startup_seconds for row in rows]),
        copy_seconds_per_byte=copies,
        host_seconds=np.array([host.host_seconds for host in hosts]) * rounds,
        host_seconds_per_byte=np.array([host.host_seconds_per_byte for host in hosts]),
        link_seconds=np.array([row.sends for row in rows]) * cluster.link_seconds_per_send * rounds,
        seconds_per_byte=alone,
        equation_seconds_per_byte=np.array([row.equation for row in rows]),
        server=np.array([row.server for row in rows], dtype=np.int16),
        load=load,
        resources=where.names,
        utilization=np.ascontiguousarray(share[:, first]),
        flows=np.ascontiguousarray(flows[:, first]),
        ports=ports,
        in_flight=backend_of(cluster).in_flight,
        engine_seconds=(
            engine.startup_seconds + engine.startup_seconds_per_worker * cluster.world_size
        ),
    )


def _kinds(cluster: Cluster, teams: tuple[Teams, ...]) -> list[tuple[Op, int, int]]:
    """(operation, teams, root) of every message that the compiler emits (its kernel `chain`, and
    `sharded_messages` and `placed_messages`, whose teams follow the explicit rings)."""
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


def _row(
    cluster: Cluster, traffic: MessageTraffic, operation: Op, teams: Teams, root: int, travels: bool
) -> _Row:
    kind = COST_KIND[operation]
    workers = max((len(team) for team in teams), default=1)
    latency, equation, connection, sends = traffic.figures.tolist()
    startup = rounds_of(operation) * startup_seconds(cluster, kind, workers, latency)
    return _Row(
        startup if travels else 0.0,
        cluster.cost(kind).seconds_per_byte if travels else 0.0,
        equation,
        root,
        operation,
        connection,
        sends,
        travels,
    )
