"""Costs of messages whose traffic is given edge by edge: gloo's, and those of any backend on a
cluster whose file states what a message costs."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster, MessageKind
from autosync.codes import Op
from autosync.errors import NotSupported
from autosync.plan.plan_table import FIRST_SERVER, Teams, TeamTable
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.link_resources import (
    Resources,
    connection_seconds,
    load_of,
    number_equal_rows,
    passing,
    resources_of,
)
from autosync.simulator.cost.lone_messages import lone_seconds_per_byte
from autosync.simulator.cost.message_classes import (
    COST_KIND,
    ROUNDS_OF_ROWS,
    SERVER_OPERATIONS,
    message_classes,
)
from autosync.simulator.cost.network_arrays import Network

F64 = NDArray[np.float64]

FIGURES = 5
"""Of a message's traffic: see `MessageTraffic`."""

MOST_CLASSES = 32767
"""Each takes a row over all links: more of them would take gigabytes."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the messages of a cluster occupy, whatever its measured costs are: the fields of
    `Network` that only the topology decides. Besides:

    paid: whose fitted cost each pays. workers: ranks of its largest team.
    latency_seconds f64[K]: of the stated links. sends f64[K]: that one resource sees.
    travels bool[K]: False where a class has one rank and moves nothing.
    """

    message_class: NDArray[np.int32]
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


def edge_network(cluster: Cluster, teams: TeamTable) -> Network:
    """The costs of every class of messages that plans over these teams can hold."""
    stated = frozenset(cost.kind for cost in cluster.costs)
    traffic = _traffic_of(cluster.without_measured_costs(), stated, teams)
    engine = cluster.cost("engine")
    travels, classes = traffic.travels, len(traffic.operations)
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
        team_kind=np.arange(len(teams)),
        root_kind=np.arange(cluster.servers + 1),
        least_bytes=np.zeros(classes),
        last_class=np.arange(classes, dtype=np.int32),
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
        transfer_slowdown=cluster.transfer_slowdown,
        compute_slowdown=cluster.compute_slowdown,
        owner_seconds_per_byte=np.zeros(classes),
    )


@lru_cache(maxsize=8)
def _traffic_of(cluster: Cluster, stated: frozenset[MessageKind], teams: TeamTable) -> Traffic:
    """A fit of costs asks for hundreds of networks of one topology. stated: the kinds of messages
    whose cost is known, with all that a message takes alone."""
    where = resources_of(cluster)
    message_class = np.full((len(Op), len(teams), cluster.servers + 1), -1, dtype=np.int32)
    classes = message_classes(cluster, teams)
    if len(classes) > MOST_CLASSES:
        raise NotSupported(
            f"{cluster.name} has {cluster.servers} servers, whose messages are of {len(classes)} "
            f"classes; at most {MOST_CLASSES} can be told apart.",
            thing="cluster",
            value=cluster.servers,
            remedy="Describe at most 4,000 devices.",
        )
    load, flows = np.empty((2, len(classes), len(where.rate)))
    figures, workers = np.empty((len(classes), FIGURES)), []
    travels = np.ones(len(classes), dtype=np.bool_)
    on_teams = TeamTraffic(cluster, stated, where)
    explicit = FIRST_SERVER + cluster.servers
    for place, (operation, team, root) in enumerate(classes):
        message_class[operation, team, root + 1] = place
        figures[place], load[place], flows[place] = on_teams.together(operation, teams[team], root)
        workers.append(max((len(ranks) for ranks in teams[team]), default=1))
        travels[place] = team < explicit or workers[place] > 1  # one rank holds a placed module
    latency_seconds, equation, connection, sends, lone = figures.T
    alone = np.max([load.max(axis=1), connection, lone], axis=0)
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

    figures f64[FIGURES], of which the largest count of several teams: latency seconds; seconds per
        byte by equations 2 and 3, and of the slowest connection; how many sends one resource sees;
        seconds per byte of a message alone whose cost the cluster does not state.
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

    def __init__(self, cluster: Cluster, stated: frozenset[MessageKind], where: Resources) -> None:
        self.cluster, self.stated, self.where = cluster, stated, where
        self.rootless: dict[tuple[Op, Teams], tuple[list[MessageTraffic], MessageTraffic]] = {}

    def together(self, operation: Op, teams: Teams, root: int) -> MessageTraffic:
        if len(teams) == 1:
            return _traffic(self.cluster, self.stated, self.where, operation, teams[0], root)
        if (operation, teams) not in self.rootless:
            parts = [
                _traffic(self.cluster, self.stated, self.where, operation, team, -1)
                for team in teams
            ]
            self.rootless[operation, teams] = parts, _together(parts, len(self.where.rate))
        parts, whole = self.rootless[operation, teams]
        own = next((place for place, team in enumerate(teams) if root in team), -1)
        if own < 0:
            return whole
        rooted = _traffic(self.cluster, self.stated, self.where, operation, teams[own], root)
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
        np.max([np.zeros(FIGURES), *(part.figures for part in parts)], axis=0),
        sum((part.load for part in parts), nothing),
        sum((part.flows for part in parts), nothing),
    )


def _traffic(
    cluster: Cluster,
    stated: frozenset[MessageKind],
    where: Resources,
    operation: Op,
    team: tuple[int, ...],
    root: int,
) -> MessageTraffic:
    carried = backend_of(cluster).carried_as(operation, root < cluster.world_size)
    edges = backend_of(cluster).edges_of(carried, team, root)
    if not len(edges.source):
        nothing = np.zeros(len(where.rate))
        return MessageTraffic(np.zeros(FIGURES), nothing, nothing)
    ends = where.node[edges.source], where.node[edges.target]
    latency = where.pair_latency_seconds[ends]
    weights = edges.weight / where.pair_rate[ends]
    if carried in SERVER_OPERATIONS:
        equation = weights.sum()
    else:
        equation = (edges.equation_weight / where.pair_rate[ends]).max()
    # a ring sends over every edge in every step
    sends = np.full(len(edges.source), edges.steps if edges.ring else 1.0)
    passes_all = edges.ring or edges.in_turn
    latency_seconds = edges.steps * (latency.mean() if passes_all else latency.max())
    connection = connection_seconds(cluster, edges, where)
    most_sends = passing(edges, sends, where).max()
    known = COST_KIND[operation] in stated
    lone = 0.0 if known else lone_seconds_per_byte(cluster, edges, where)
    return MessageTraffic(
        np.array([latency_seconds, equation, connection, most_sends, lone]),
        load_of(edges, where),
        passing(edges, np.ones(len(edges.source)), where),
    )
