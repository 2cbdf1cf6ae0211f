"""What messages cost on a cluster: startup, and the time they hold each link.

Every message that plans of a cluster can hold is of some class (operation, teams, root). A class
has a startup and, per byte that one replica contributes, the seconds it occupies each resource:
each NIC's two directions, each device's port to the others of its node, and stated links.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autosync.cluster import Cluster, MessageKind
from autosync.codes import Op
from autosync.errors import NotSupported
from autosync.plan.plan_table import ALL_RANKS, FIRST_SERVER, LEADERS, NODE_TEAMS, PlanTable, Teams
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.link_resources import (
    Resources,
    connection_seconds,
    load_of,
    number_equal_rows,
    passing,
    resources_of,
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

SERVER_OPERATIONS = tuple(op for op in Op if op.to_owner or op.from_owner)

ROUNDS_OF_ROWS = 2
"""Of a message of touched rows, whose number only the sender knows: a header, and the payload that
is asked for when the header is there (`runtime.transport.ragged`). Each is a message to the hosts
and to the links. Factors travel so, too, but what a round more would add is not found in what
their strategies measured (docs/simulator.md)."""


@dataclass(frozen=True, slots=True)
class Network:
    """K classes of messages over R resources.

    message_class i16[11, teams, servers + 1]: by operation, teams and root + 1 (see `class_of`); -1
        for messages that no plan holds.
    startup_seconds f64[K]; copy_seconds_per_byte f64[K]: an engine's own copies.
    host_seconds, host_seconds_per_byte f64[K]: for which a message keeps the hosts' processors.
    link_seconds f64[K]: for which a message holds its links besides its bytes.
    seconds_per_byte f64[K]: of a message alone: the time at its slowest resource, or on its
        slowest connection where connections have a rate of their own.
    equation_seconds_per_byte f64[K]: the network term of equation 2 (servers: the sum over
        workers) and equation 3 (collectives: over the lowest bandwidth).
    server i16[K]: the owner a class works for, -1 for collectives.
    load f64[K, R]: seconds per byte that a resource is held. resources: their names.
    utilization f64[K, U]: the same over seconds_per_byte, in [0, 1]. flows f64[K, U]: pairs of
        ranks between which a message flows over each resource. Equal columns once.
    ports bool[U]: columns that are devices' ports.
    in_flight: collectives at once per channel. engine_seconds: an engine's for each message.
    """

    message_class: NDArray[np.int16]
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

    def classes_of(self, plans: PlanTable) -> NDArray[np.int16]:
        """The class of every message of the plans, `(messages,)`."""
        return self.class_of(plans.operation, plans.ranks, plans.root)

    def class_of(
        self, operation: ArrayLike, teams: ArrayLike, root: ArrayLike = -1
    ) -> NDArray[np.int16]:
        """The classes of messages by operation, teams and root (-1: none); all broadcast."""
        places = (
            np.asarray(each, dtype=np.int64)
            for each in (operation, teams, np.add(root, 1, dtype=np.int64))
        )
        classes: NDArray[np.int16] = self.message_class[tuple(places)]
        return classes

    @property
    def message_seconds(self) -> F64:
        """What a message of each class costs besides its bytes, `(K,)`."""
        result: F64 = self.startup_seconds + self.host_seconds + self.engine_seconds
        return result


def link_seconds_per_byte(
    cluster: Cluster, operation: Op, team: tuple[int, ...], root: int = -1
) -> float:
    """How long one message within a team holds its slowest resource, per byte of a replica's."""
    edges = backend_of(cluster).edges_of(operation, team, root)
    return float(load_of(edges, resources_of(cluster)).max())


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the messages of a cluster occupy, whatever its measured costs are: the fields of
    `Network` that only the topology decides. Besides:

    paid: whose fitted cost each class pays. workers: ranks of its largest team.
    latency_seconds f64[K]: of the stated links. sends f64[K]: that one resource sees.
    travels bool[K]: False where a class has one rank and moves nothing.
    """

    message_class: NDArray[np.int16]
    operations: NDArray[np.uint8]
    paid: tuple[MessageKind, ...]
    workers: tuple[int, ...]
    latency_seconds: F64
    sends: F64
    travels: NDArray[np.bool_]
    sparse: NDArray[np.bool_]
    seconds_per_byte: F64
    equation_seconds_per_byte: F64
    server: NDArray[np.int16]
    load: F64
    resources: tuple[str, ...]
    utilization: F64
    flows: F64
    ports: NDArray[np.bool_]


@lru_cache(maxsize=8)
def network_of(cluster: Cluster, teams: tuple[Teams, ...]) -> Network:
    """The costs of every class of messages that plans over these teams can hold."""
    traffic = _traffic_of(cluster.without_measured_costs(), teams)
    engine = cluster.cost("engine")
    travels = traffic.travels
    costs = [cluster.cost(each) for each in traffic.paid]
    latency_seconds = traffic.latency_seconds.tolist()
    startups = [
        startup_seconds(cluster, *each)
        for each in zip(traffic.paid, traffic.workers, latency_seconds, strict=True)
    ]
    rounds = np.where(traffic.sparse, float(ROUNDS_OF_ROWS), 1.0)

    def of_costs(field: str) -> F64:
        return np.where(travels, [getattr(cost, field) for cost in costs], 0.0)

    return Network(
        message_class=traffic.message_class,
        operations=traffic.operations,
        startup_seconds=np.where(travels, rounds * startups, 0.0),
        copy_seconds_per_byte=of_costs("seconds_per_byte") + engine.seconds_per_byte,
        host_seconds=of_costs("host_seconds") * rounds,
        host_seconds_per_byte=of_costs("host_seconds_per_byte"),
        link_seconds=traffic.sends * cluster.link_seconds_per_send * rounds,
        seconds_per_byte=traffic.seconds_per_byte,
        equation_seconds_per_byte=traffic.equation_seconds_per_byte,
        server=traffic.server,
        load=traffic.load,
        resources=traffic.resources,
        utilization=traffic.utilization,
        flows=traffic.flows,
        ports=traffic.ports,
        in_flight=backend_of(cluster).in_flight,
        engine_seconds=(
            engine.startup_seconds + engine.startup_seconds_per_worker * cluster.world_size
        ),
    )


@lru_cache(maxsize=8)
def _traffic_of(cluster: Cluster, teams: tuple[Teams, ...]) -> Traffic:
    """A fit of costs asks for hundreds of networks of one topology."""
    where = resources_of(cluster)
    message_class = np.full((len(Op), len(teams), cluster.servers + 1), -1, dtype=np.int16)
    classes = _classes(cluster, teams)
    if len(classes) > np.iinfo(message_class.dtype).max:
        raise NotSupported(
            f"{cluster.name} has {cluster.servers} servers, whose messages are of {len(classes)} "
            f"classes; at most {np.iinfo(message_class.dtype).max} can be told apart.",
            thing="cluster",
            value=cluster.servers,
            remedy="Describe at most 4,000 devices.",
        )
    load, flows = np.empty((2, len(classes), len(where.rate)))
    figures, workers = np.empty((len(classes), 4)), []
    travels = np.ones(len(classes), dtype=np.bool_)
    on_teams, explicit = TeamTraffic(cluster, where), FIRST_SERVER + cluster.servers
    for place, (operation, team, root) in enumerate(classes):
        message_class[operation, team, root + 1] = place
        figures[place], load[place], flows[place] = on_teams.together(operation, teams[team], root)
        workers.append(max((len(ranks) for ranks in teams[team]), default=1))
        travels[place] = team < explicit or workers[place] > 1  # one rank holds a placed module
    latency_seconds, equation, connection, sends = figures.T
    alone = np.maximum(load.max(axis=1), connection)
    share = load / np.where(alone > 0, alone, 1.0)[:, None]
    column = number_equal_rows(share.T, flows.T)
    first = np.unique(column, return_index=True)[1]
    held = share.max(axis=0)[first] > 0
    ports = np.bincount(column, weights=where.ports) > 0
    first, ports = first[held], ports[held]
    operations = [operation for operation, _, _ in classes]
    return Traffic(
        message_class=message_class,
        operations=np.array(operations, dtype=np.uint8),
        paid=tuple(COST_KIND[operation] for operation in operations),
        workers=tuple(workers),
        latency_seconds=latency_seconds,
        sends=sends,
        travels=travels,
        sparse=np.array([operation.sparse for operation in operations]),
        seconds_per_byte=alone,
        equation_seconds_per_byte=equation,
        server=np.array([root for _, _, root in classes], dtype=np.int16),
        load=load,
        resources=where.names,
        utilization=np.ascontiguousarray(share[:, first]),
        flows=np.ascontiguousarray(flows[:, first]),
        ports=ports,
    )


def _classes(cluster: Cluster, teams: tuple[Teams, ...]) -> list[tuple[Op, int, int]]:
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


def startup_seconds(
    cluster: Cluster, kind: MessageKind, workers: int, latency_seconds: float
) -> float:
    """What a message among so many workers costs before its bytes. latency_seconds: of its steps
    one after another; a cost that the cluster states holds them already."""
    cost = cluster.cost(kind)
    startup = cost.startup_seconds + cost.startup_seconds_per_worker * workers
    return startup if cost in cluster.costs else startup + latency_seconds


class MessageTraffic(NamedTuple):
    """A message's, or one team's share of it.

    figures f64[4], of which the largest count of several teams: latency seconds; seconds per byte
        by equations 2 and 3, and of the slowest connection; how many sends one resource sees.
    load, flows f64[R]: see `Network`.
    """

    figures: F64
    load: F64
    flows: F64


class TeamTraffic:
    """What messages over teams are together.

    One over the teams of all nodes has a root in one of them; the others do what they do without a
    root, which is found once: of hundreds of nodes there are too many pairs of root and team.
    """

    def __init__(self, cluster: Cluster, where: Resources) -> None:
        self.cluster, self.where = cluster, where
        self.rootless: dict[tuple[Op, Teams], tuple[list[MessageTraffic], MessageTraffic]] = {}

    def together(self, operation: Op, teams: Teams, root: int) -> MessageTraffic:
        if len(teams) == 1:
            return _traffic(self.cluster, self.where, operation, teams[0], root)
        if (operation, teams) not in self.rootless:
            parts = [_traffic(self.cluster, self.where, operation, team, -1) for team in teams]
            self.rootless[operation, teams] = parts, _together(parts, len(self.where.rate))
        parts, whole = self.rootless[operation, teams]
        own = next((place for place, team in enumerate(teams) if root in team), -1)
        if own < 0:
            return whole
        rooted = _traffic(self.cluster, self.where, operation, teams[own], root)
        figures = [rooted.figures, *(part.figures for part in parts if part is not parts[own])]
        # teams of different nodes share no link, so nothing of the team's own is left
        return MessageTraffic(
            np.max(figures, axis=0),
            whole.load - parts[own].load + rooted.load,
            whole.flows - parts[own].flows + rooted.flows,
        )


def _together(parts: list[MessageTraffic], resources: int) -> MessageTraffic:
    nothing = np.zeros(resources)
    return MessageTraffic(
        np.max([np.zeros(4), *(part.figures for part in parts)], axis=0),
        sum((part.load for part in parts), nothing),
        sum((part.flows for part in parts), nothing),
    )


def _traffic(
    cluster: Cluster, where: Resources, operation: Op, team: tuple[int, ...], root: int
) -> MessageTraffic:
    edges = backend_of(cluster).edges_of(operation, team, root)
    if not len(edges.source):
        nothing = np.zeros(len(where.rate))
        return MessageTraffic(np.zeros(4), nothing, nothing)
    ends = where.node[edges.source], where.node[edges.target]
    latency = where.pair_latency_seconds[ends]
    weights = edges.weight / where.pair_rate[ends]
    if operation in SERVER_OPERATIONS:
        equation = weights.sum()
    else:
        equation = (edges.equation_weight / where.pair_rate[ends]).max()
    # a ring sends over every edge in every step
    sends = np.full(len(edges.source), edges.steps if edges.ring else 1.0)
    latency_seconds = edges.steps * (latency.mean() if edges.ring else latency.max())
    connection = connection_seconds(cluster, edges, where)
    most_sends = passing(edges, sends, where).max()
    return MessageTraffic(
        np.array([latency_seconds, equation, connection, most_sends]),
        load_of(edges, where),
        passing(edges, np.ones(len(edges.source)), where),
    )
