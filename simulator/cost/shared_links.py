"""What ranks share on their way to others: the NICs of a node, and a leaf's links to the spine."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster
from autosync.plan.plan_table import Teams
from autosync.simulator.cost.alike_servers import AlikeServers, NodeKind
from autosync.simulator.fabric import has_rails, hosts_per_leaf, leaf_of_node
from autosync.simulator.topology import topology_of

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Uplinks:
    """Links of leaf switches to the spine.

    leaf i64[nodes]: the leaf of each node. hosts: rate of a leaf's links, in hosts that send at
    their full rate. oversubscribed: whether that is less than its hosts can send. rails: whether
    the fabric is rail-optimized. rail i64[servers]: the rail of each rank, whose messages to other
    rails cross the spine. It is -1 without rails, for dedicated servers, and where NVLink carries
    a message to the NIC of the other rail first.
    """

    leaf: I64
    hosts: float
    oversubscribed: bool
    rails: bool
    rail: I64

    @property
    def leaves(self) -> int:
        return int(self.leaf.max()) + 1

    def crossing(self, servers: I64, root: int, node_of: I64) -> int:
        """Number of the servers whose messages to the root cross the spine."""
        if not self.oversubscribed:
            return 0
        away = node_of[servers] != node_of[root]
        other_leaf = self.leaf[node_of[servers]] != self.leaf[node_of[root]]
        both_on_rails = (self.rail[servers] >= 0) & (self.rail[root] >= 0)
        other_rail = both_on_rails & (self.rail[servers] != self.rail[root])
        return int((other_leaf | (away & other_rail)).sum())

    def bytes_per_second(self, kind: NodeKind) -> float:
        """That reach a server of such a node from the spine; on a rail-optimized fabric over the
        leaves of the NICs near it."""
        nics = kind.rank_nics if self.rails else kind.nics
        return self.hosts * nics * kind.nic_bytes_per_second


def uplinks_of(cluster: Cluster) -> Uplinks:
    rails = has_rails(cluster)
    rail = np.full(cluster.servers, -1, dtype=np.int64)
    if rails and not topology_of(cluster).passes_peers:
        node_of = cluster.node_of_server()[: cluster.world_size]
        first = np.searchsorted(node_of, node_of)
        place = np.arange(cluster.world_size) - first
        nics = np.array([node.nics for node in cluster.nodes])[node_of]
        gpus = np.array([node.ranks for node in cluster.nodes])[node_of]
        rail[: cluster.world_size] = place * np.minimum(nics, gpus) // gpus
    return Uplinks(
        leaf=np.array(leaf_of_node(cluster), dtype=np.int64),
        hosts=hosts_per_leaf(cluster) / cluster.oversubscription,
        oversubscribed=cluster.oversubscription > 1,
        rails=rails,
        rail=rail,
    )


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Teams that each run a message at the same time.

    kinds: for each kind of node that takes part: its index, the most ranks of such a node, and the
    most teams of one node that also have ranks on other nodes, which share its NICs. teams_of_leaf:
    the most teams of one leaf that also have ranks on other leaves.
    """

    kinds: tuple[tuple[int, int, int], ...]
    teams_of_leaf: int


def at_once(teams: Teams, servers: AlikeServers, node_of: I64, leaf: I64) -> AtOnce:
    """node_of i64[servers], leaf i64[nodes]."""
    members = np.concatenate([np.array(team, dtype=np.int64) for team in teams])
    team = np.repeat(np.arange(len(teams)), [len(each) for each in teams])
    node = node_of[members]
    ranks = np.bincount(node, minlength=len(servers.node_kind))
    reaching = _reaching_others(team, node, len(ranks))
    kinds = []
    for kind in range(len(servers.kinds)):
        among = (servers.node_kind == kind) & (ranks > 0)
        if among.any():
            kinds.append((kind, int(ranks[among].max()), int(reaching[among].max())))
    of_leaf = _reaching_others(team, leaf[node], int(leaf.max()) + 1)
    return AtOnce(tuple(kinds), int(of_leaf.max()))


def _reaching_others(team: I64, place: I64, places: int) -> I64:
    """How many teams of each place have members at others, `(places,)`.

    team, place i64[m]: of each member.
    """
    both = np.unique(np.column_stack([team, place]), axis=0)
    several = np.bincount(both[:, 0])[both[:, 0]] > 1
    return np.bincount(both[several, 1], minlength=places)
