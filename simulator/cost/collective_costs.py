"""Costs of messages on NCCL, from the model of its collectives (`backends.nccl.collectives`).

A collective costs one line in its bytes for each algorithm and protocol that NCCL picks, so that
messages of one team and operation are of several classes by their bytes. Messages of owners that
are ranks are reductions and broadcasts. What travels to and from dedicated servers, and beside NCCL
(rows and factors, over sockets), is counted link by link.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster
from autosync.cluster.devices import DEVICE_TYPES
from autosync.codes import Op
from autosync.plan.plan_table import FIRST_SERVER, Teams, TeamTable
from autosync.simulator.backends import backend_of
from autosync.simulator.backends.nccl import CostSegment, cost_segments
from autosync.simulator.cost.alike_servers import alike_servers
from autosync.simulator.cost.edge_costs import startup_seconds
from autosync.simulator.cost.link_resources import load_of, number_equal_rows, resources_of
from autosync.simulator.cost.message_classes import (
    COST_KIND,
    ROUNDS_OF_ROWS,
    SERVER_OPERATIONS,
    message_classes,
)
from autosync.simulator.cost.network_arrays import Network
from autosync.simulator.cost.replication_constants import REPLICATION
from autosync.simulator.cost.shared_links import at_once, uplinks_of
from autosync.simulator.topology import Topology, topology_of, topology_of_team

F64 = NDArray[np.float64]

OPERATION_NAMES = {
    Op.ALL_REDUCE: "all_reduce",
    Op.REDUCE: "reduce",
    Op.BROADCAST: "broadcast",
    Op.REDUCE_SCATTER: "reduce_scatter",
    Op.ALL_GATHER: "all_gather",
}
"""Collectives that NCCL runs itself."""

SPINE = "spine"
NO_ROOT: F64 = np.zeros(5)
ROOT_PORTS = [False, False, True, True, False]
"""Which of a root's links are ports of devices."""


def has_collective_model(cluster: Cluster) -> bool:
    """Whether messages cost what the model of NCCL's collectives says: on GPUs, where the cluster
    file states no fitted costs."""
    return on_nccl_gpus(cluster) and all(cost.kind == "engine" for cost in cluster.costs)


def on_nccl_gpus(cluster: Cluster) -> bool:
    """Whether NCCL moves the messages of GPUs of known types."""
    gpus = all(DEVICE_TYPES[device.type].is_gpu for device in cluster.device_of_rank())
    return cluster.backend == "nccl" and gpus


@dataclass(frozen=True, slots=True)
class _Class:
    """least_bytes: from which on. server: the owner whose links it holds besides, -1 for
    collectives. links f64[4 K + 1]: bytes on each kind of link (`LINKS` of each kind of node, then
    a leaf's links to the spine) per byte of the message; root f64[5]: on those of the root."""

    operation: Op
    server: int
    least_bytes: float
    startup_seconds: float
    seconds_per_byte: float
    equation_seconds_per_byte: float
    links: F64
    root: F64


def collective_network(cluster: Cluster, teams: TeamTable) -> Network:
    """The costs of every class of messages that plans over these teams can hold."""
    costs = _ClassCosts(cluster)
    team_kind = np.arange(len(teams))
    with_server = slice(FIRST_SERVER, FIRST_SERVER + cluster.servers)
    team_kind[with_server] = FIRST_SERVER
    team_kind[with_server.stop :] -= cluster.servers - 1
    _, root_kind = np.unique(costs.servers.first, return_inverse=True)
    root_kind = np.concatenate([[0], root_kind + 1])
    kinds = len(Op), int(team_kind[-1]) + 1, int(root_kind.max()) + 1
    message_class = np.full(kinds, -1, dtype=np.int32)
    classes: list[_Class] = []
    last_class: list[int] = []
    for operation, team, root in message_classes(cluster, teams):
        place = operation, team_kind[team], root_kind[root + 1]
        if message_class[place] < 0:
            message_class[place] = len(classes)
            slowest = costs.stated_links_seconds(operation, teams[team], root)
            found = [
                replace(each, seconds_per_byte=max(each.seconds_per_byte, slowest))
                for each in costs.classes(operation, teams[team], root)
            ]
            last_class += [len(classes) + len(found) - 1] * len(found)
            classes += found
    links = np.array([each.links for each in classes]) / costs.rates
    roots = np.array([each.root for each in classes]) / costs.root_rates
    own = roots.max(axis=1)
    stated = np.array([each.seconds_per_byte for each in classes])
    alone = np.maximum(stated, np.maximum(links.max(axis=1), own))
    server = np.array([each.server for each in classes])
    typical = np.array([links[:, place:-1:4].max(axis=1) for place in range(4)] + [links[:, -1]]).T
    at_root = np.where(server[:, None] >= 0, roots, typical)
    # messages of a dedicated server follow each other, and nothing else passes its links
    at_root[server >= cluster.world_size] = 0.0
    held = np.hstack([links, at_root])
    share = held / np.where(alone > 0, alone, 1.0)[:, None]
    is_port = np.array([False, False, True, True] * len(costs.servers.kinds) + [False] + ROOT_PORTS)
    column = number_equal_rows(share.T)
    first = np.unique(column, return_index=True)[1]
    first = first[share.max(axis=0)[first] > 0]
    utilization = np.ascontiguousarray(share[:, first])
    engine, overlap = cluster.cost("engine"), cluster.overlap_slowdown
    count, shown = len(classes), len(costs.names) - (not costs.uplinks.oversubscribed)
    return Network(
        message_class=message_class,
        team_kind=team_kind,
        root_kind=root_kind,
        least_bytes=np.array([each.least_bytes for each in classes]),
        last_class=np.array(last_class, dtype=np.int32),
        operations=np.array([each.operation for each in classes], dtype=np.uint8),
        startup_seconds=np.array([each.startup_seconds for each in classes]),
        copy_seconds_per_byte=np.full(count, engine.seconds_per_byte),
        host_seconds=np.zeros(count),
        host_seconds_per_byte=np.zeros(count),
        link_seconds=np.zeros(count),
        seconds_per_byte=alone,
        equation_seconds_per_byte=np.array([each.equation_seconds_per_byte for each in classes]),
        server=server.astype(np.int16),
        load=links[:, :shown],
        resources=costs.names[:shown],
        utilization=utilization,
        flows=(utilization > 0).astype(np.float64),
        ports=np.bincount(column, weights=is_port, minlength=len(first))[column[first]] > 0,
        in_flight=backend_of(cluster).in_flight,
        engine_seconds=(
            engine.startup_seconds + engine.startup_seconds_per_worker * cluster.world_size
        ),
        transfer_slowdown=cluster.transfer_slowdown,
        compute_slowdown=REPLICATION.overlap_slowdown if overlap is None else overlap,
        owner_seconds_per_byte=own,
    )


class _ClassCosts:
    """What messages cost on a cluster, alike ones once."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.servers = cluster, alike_servers(cluster)
        self.node_of = cluster.node_of_server().astype(np.int64)
        topology = topology_of(cluster)
        self.port, self.nvlink = topology.link_gbytes_per_second * 1e9, topology.nvlink
        rates, names = [], []
        for kind in self.servers.kinds:
            nics = kind.nics * kind.nic_bytes_per_second
            rates += [nics, nics, self.port, self.port]
            names += [f"NIC out {kind.name}", f"NIC in {kind.name}"]
            names += [f"GPU port out {kind.name}", f"GPU port in {kind.name}"]
        self.uplinks = uplinks_of(cluster)
        slowest = min(kind.nics * kind.nic_bytes_per_second for kind in self.servers.kinds)
        self.rates, self.names = np.array([*rates, self.uplinks.hosts * slowest]), (*names, SPINE)
        # of a root, what passes NICs and the spine is counted in seconds already
        self.root_rates = np.array([1.0, 1.0, self.port, self.port, 1.0])

    def classes(self, operation: Op, teams: Teams, root: int) -> list[_Class]:
        """Of a message, by its bytes."""
        carried = self._carried_as(operation, root)
        if carried in SERVER_OPERATIONS:
            return [self._of_owner(operation, teams[0], root)]
        if carried in OPERATION_NAMES:
            return self._of_collective(operation, carried, teams)
        return [self._of_rows(operation, teams)]

    def _carried_as(self, operation: Op, root: int) -> Op:
        return backend_of(self.cluster).carried_as(operation, root < self.cluster.world_size)

    def stated_links_seconds(self, operation: Op, teams: Teams, root: int) -> float:
        """Per byte on the slowest of the links that the file states between two nodes, where a
        ring in the order of the ranks passes it; 0 without such links."""
        if not self.cluster.links:
            return 0.0
        where, backend = resources_of(self.cluster), backend_of(self.cluster)
        carried = self._carried_as(operation, root)
        loads = [
            load_of(backend.edges_of(carried, team, root), where)[-2 * len(self.cluster.links) :]
            for team in teams
        ]
        return float(np.max(loads, initial=0.0))

    def _slowest(self, teams: Teams) -> Topology | None:
        """Of the team that takes longest; None where no rank has another one to talk to."""
        found = {
            topology_of_team(self.cluster, team): None for team in _distinct(teams, self) if team
        }
        several = [topology for topology in found if topology.ranks > 1]
        return max(several, key=lambda each: _seconds_per_byte(each), default=None)

    def _of_collective(self, operation: Op, carried: Op, teams: Teams) -> list[_Class]:
        """carried: the collective that moves messages of `operation`. Its bytes pass the ports of
        all ranks alike, so loads of links do not tell owners apart. A message of an owner therefore
        also counts on the owner's port alone, and searches spread variables over owners."""
        topology, nothing = self._slowest(teams), np.zeros(len(self.rates))
        if topology is None:  # each rank by itself: nothing travels
            return [_Class(operation, -1, 0.0, 0.0, 0.0, 0.0, nothing, NO_ROOT)]
        found = []
        shared = at_once(teams, self.servers, self.node_of, self.uplinks.leaf)
        for segment in cost_segments(topology, OPERATION_NAMES[carried]):
            links, root = nothing.copy(), NO_ROOT.copy()
            if operation is not carried:
                root[3 if operation.to_owner else 2] = segment.gpu_bytes
            for kind, ranks, reaching in shared.kinds:
                # the mean over the node's GPUs, of which not all may take part
                part = min(1.0, ranks / max(self.servers.kinds[kind].gpus, 1))
                crossing = segment.nic_bytes * topology.nics * reaching
                links[4 * kind : 4 * kind + 4] = [
                    crossing, crossing, segment.gpu_bytes * part, segment.gpu_bytes * part
                ]  # fmt: skip
            links[-1] = segment.spine_bytes * shared.teams_of_leaf
            found.append(_of_segment(operation, segment, links, root))
        return found

    def _of_owner(self, operation: Op, team: tuple[int, ...], root: int) -> _Class:
        """Everyone to the root, or back. A dedicated server's NICs carry all of it; a rank's are
        those near its GPU."""
        theirs, its = ((0, 2), (1, 3)) if operation.to_owner else ((1, 3), (0, 2))
        links, root_bytes = np.zeros(len(self.rates)), NO_ROOT.copy()
        others = np.array([server for server in team if server != root], dtype=np.int64)
        is_home = self.node_of[others] == self.node_of[root]
        own, crossing = int(self.servers.kind[root]), float((~is_home).sum())
        at_port = float(is_home.sum()) if self.nvlink else float(len(others))
        for number, kind in enumerate(self.servers.kinds):
            sending = self.servers.kind[others] == number
            nodes, gpus = len(kind.addresses), max(kind.gpus, 1)
            links[4 * number + theirs[0]] += float((sending & ~is_home).sum()) / nodes
            passing = sending & is_home if self.nvlink else sending
            links[4 * number + theirs[1]] += float(passing.sum()) / (nodes * gpus)
        near = self.servers.kinds[own]
        links[4 * own + its[0]] += crossing / len(near.addresses)
        nic = crossing / near.rank_bytes_per_second
        connection = self.cluster.connection_gbps * 1e9 / 8
        if connection and crossing:
            nic = max(nic, 1.0 / connection)
        root_bytes[its[0]] = nic
        to_spine = self.uplinks.crossing(others, root, self.node_of)
        links[-1] = to_spine / self.uplinks.leaves
        root_bytes[-1] = to_spine / self.uplinks.bytes_per_second(near)
        if root < self.cluster.world_size:
            links[4 * own + its[1]] += at_port / (len(near.addresses) * near.gpus)
            root_bytes[its[1]] = at_port
        equation = crossing / near.rank_bytes_per_second + float(is_home.sum()) / self.port
        startup = startup_seconds(
            self.cluster, COST_KIND[operation], len(team), self._latency_seconds(crossing > 0)
        )
        rounds = ROUNDS_OF_ROWS if operation.sparse else 1
        return _Class(operation, root, 0.0, rounds * startup, 0.0, equation, links, root_bytes)

    def _of_rows(self, operation: Op, teams: Teams) -> _Class:
        """Rows and factors, which every rank sends to every other by itself."""
        links = np.zeros(len(self.rates))
        most = max((len(team) for team in teams), default=1)
        crosses = False
        for team in teams:
            held = np.bincount(self.node_of[list(team)], minlength=len(self.servers.node_kind))
            for node in np.flatnonzero(held).tolist():
                kind = int(self.servers.node_kind[node])
                outside = float(held[node] * (len(team) - held[node]))
                crosses |= outside > 0
                loads = np.repeat([outside, float(len(team) - 1)], 2)
                place = slice(4 * kind, 4 * kind + 4)
                links[place] = np.maximum(links[place], loads)
            links[-1] = max(links[-1], self._leaving_leaf(team))
        startup = startup_seconds(
            self.cluster, COST_KIND[operation], most, self._latency_seconds(crosses)
        )
        connection = self.cluster.connection_gbps * 1e9 / 8
        alone = float((links / self.rates).max())
        alone = max(alone, 1.0 / connection if connection and crosses else 0.0)
        rounds = ROUNDS_OF_ROWS if operation.sparse else 1
        seconds = rounds * startup if most > 1 else 0.0
        return _Class(operation, -1, 0.0, seconds, alone, alone, links, NO_ROOT)

    def _leaving_leaf(self, team: tuple[int, ...]) -> float:
        """The most bytes that leave a leaf where every rank sends to every other."""
        if not self.uplinks.oversubscribed:
            return 0.0
        ranks = np.bincount(self.uplinks.leaf[self.node_of[list(team)]])
        return float((ranks * (len(team) - ranks)).max())

    def _latency_seconds(self, crosses: bool) -> float:
        nodes = [node.latency_us for node in self.cluster.nodes if node.ranks]
        return max(nodes) * 1e-6 if crosses else 0.0


def _of_segment(operation: Op, segment: CostSegment, links: F64, root: F64) -> _Class:
    per_byte = segment.seconds_per_byte
    return _Class(
        operation, -1, segment.least_bytes, segment.startup_seconds, per_byte, per_byte, links,
        root,
    )  # fmt: skip


def _distinct(teams: Teams, costs: "_ClassCosts") -> Sequence[tuple[int, ...]]:
    """One of the teams that hold as many ranks of alike nodes each."""
    if len(teams) == 1:
        return teams
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for team in teams:
        alike = costs.servers.first[list(team)].tolist()
        if costs.uplinks.oversubscribed:
            leaves = costs.uplinks.leaf[costs.node_of[list(team)]]
            alike += np.unique(leaves, return_counts=True)[1].tolist()
        found.setdefault(tuple(alike), team)
    return tuple(found.values())


def _seconds_per_byte(topology: Topology) -> float:
    return cost_segments(topology, "all_reduce")[-1].seconds_per_byte
