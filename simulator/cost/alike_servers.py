"""Servers and links of a cluster that are alike: of hundreds of equal nodes one tells what all do.

Servers are alike where their nodes state the same and both lead their node's ranks, or neither
does. What they send to, and what is sent to them, then holds alike links alike, so a table of all
messages needs a column for each kind of link and none for each of thousands of links.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster, Node

LINKS = ("NIC out", "NIC in", "port out", "port in")


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes that are alike.

    addresses: theirs. gpus: ranks in each. nics: in each. nic_bytes_per_second: payload of one,
    in one direction. rank_nics: near one GPU, or all of a dedicated server's.
    """

    addresses: tuple[str, ...]
    gpus: int
    nics: int
    nic_bytes_per_second: float
    rank_nics: int

    @property
    def name(self) -> str:
        """For people: an address, and how many others are alike."""
        others = len(self.addresses) - 1
        return self.addresses[0] + (f" and {others} nodes like it" if others else "")

    @property
    def rank_bytes_per_second(self) -> float:
        """What one GPU sends through the NICs near it."""
        return self.rank_nics * self.nic_bytes_per_second


@dataclass(frozen=True, slots=True)
class AlikeServers:
    """kinds: of nodes. node_kind i64[nodes]. kind i64[servers], first i64[servers]: the kind of
    each server's node, and the first server alike."""

    kinds: tuple[NodeKind, ...]
    node_kind: NDArray[np.int64]
    kind: NDArray[np.int64]
    first: NDArray[np.int64]


def alike_servers(cluster: Cluster) -> AlikeServers:
    found: dict[Node, list[int]] = {}
    linked = {address for link in cluster.links for address in link.nodes}
    for place, node in enumerate(cluster.nodes):
        same = node if node.address in linked else replace(node, address="", usd_per_hour=0.0)
        found.setdefault(same, []).append(place)
    node_kind = np.empty(len(cluster.nodes), dtype=np.int64)
    kinds = []
    for number, (node, places) in enumerate(found.items()):
        node_kind[places] = number
        kinds.append(_kind(node, tuple(cluster.nodes[place].address for place in places)))
    node_of = cluster.node_of_server().astype(np.int64)
    kind = node_kind[node_of]
    leads = np.zeros(cluster.servers, dtype=np.bool_)
    leads[np.unique(node_of, return_index=True)[1]] = True
    firsts: dict[tuple[int, bool], int] = {}
    first = [
        firsts.setdefault(alike, server)
        for server, alike in enumerate(zip(kind.tolist(), leads.tolist(), strict=True))
    ]
    return AlikeServers(tuple(kinds), node_kind, kind, np.array(first, dtype=np.int64))


def _kind(node: Node, addresses: tuple[str, ...]) -> NodeKind:
    rate = node.bandwidth_gbps * 1e9 / 8 / node.nics
    near = node.nics if node.server_only else max(1, node.nics // max(1, node.ranks))
    return NodeKind(addresses, node.ranks, node.nics, rate, near)
