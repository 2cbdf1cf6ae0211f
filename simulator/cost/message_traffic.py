"""What a message puts on links, over all teams that send it at once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster
from autosync.codes import Op
from autosync.plan.plan_table import Teams
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.link_resources import (
    Resources,
    connection_seconds,
    load_of,
    passing,
)

F64 = NDArray[np.float64]

SERVER_OPERATIONS = tuple(op for op in Op if op.to_owner or op.from_owner)


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
