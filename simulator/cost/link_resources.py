"""What can be congested on a cluster, and how much of a message passes it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster
from autosync.simulator.backends.message_edges import Edges

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Resources:
    """What can be congested. Per server s (rank or dedicated host): node i64[S].

    rate f64[R]: bytes a second: NICs out, NICs in, device ports out, device ports in, then the
        two directions of each stated link. link i64[nodes, nodes]: resource of a stated link
        from node to node, -1 without; link_only: such a link does not pass the NICs.
    pair_rate, pair_latency_seconds f64[nodes, nodes]: of one message from node to node.
    """

    node: NDArray[np.int64]
    rate: F64
    pair_rate: F64
    pair_latency_seconds: F64
    names: tuple[str, ...]
    link: NDArray[np.int64]
    link_only: NDArray[np.bool_]

    @property
    def nodes(self) -> int:
        return len(self.link)

    @property
    def ports(self) -> NDArray[np.bool_]:
        """Which resources are the ports of devices, `(R,)`."""
        place = np.arange(len(self.rate)) - 2 * self.nodes
        result: NDArray[np.bool_] = (place >= 0) & (place < 2 * len(self.node))
        return result


def resources_of(cluster: Cluster) -> Resources:
    node = cluster.node_of_server().astype(np.int64)
    nic = cluster.nic_bytes_per_second()
    pair_rate = cluster.bandwidth_bytes_per_second()
    intra = np.diag(pair_rate)[node]
    count = len(nic)
    index = {member.address: i for i, member in enumerate(cluster.nodes)}
    link = np.full((count, count), -1, dtype=np.int64)
    link_only = np.zeros((count, count), dtype=np.bool_)
    rates, names = [nic, nic, intra, intra], []
    for role in ("NIC out", "NIC in"):
        names += [f"{role} {member.address}" for member in cluster.nodes]
    for role in ("port out", "port in"):
        names += [f"{role} {server}" for server in range(len(node))]
    for stated in cluster.links:
        ends = index[stated.nodes[0]], index[stated.nodes[1]]
        for i, j in (ends, ends[::-1]):
            link[i, j] = len(names)
            link_only[i, j] = stated.bandwidth_gbps > min(
                cluster.nodes[i].bandwidth_gbps, cluster.nodes[j].bandwidth_gbps
            )
            names.append(f"link {cluster.nodes[i].address} to {cluster.nodes[j].address}")
            rates.append(np.array([stated.bandwidth_gbps * 1e9 / 8]))
    return Resources(
        node,
        np.concatenate(rates),
        pair_rate,
        cluster.latency_seconds(),
        tuple(names),
        link,
        link_only,
    )


def load_of(edges: Edges, where: Resources) -> F64:
    """Seconds per byte that the edges hold each resource, `(R,)`."""
    load: F64 = passing(edges, edges.weight, where) / where.rate
    return load


def passing(edges: Edges, weight: F64, where: Resources) -> F64:
    """The sum of the weights of the edges that pass each resource, `(R,)`.

    Traffic between nodes passes the ports of its devices too (a GPU reaches the NIC over PCIe).
    """
    nodes, servers = where.nodes, len(where.node)
    from_node, to_node = where.node[edges.source], where.node[edges.target]
    outside = from_node != to_node
    link = where.link[from_node, to_node]
    nic = outside & ~((link >= 0) & where.link_only[from_node, to_node])
    stated = outside & (link >= 0)
    resource = [from_node[nic], nodes + to_node[nic], 2 * nodes + edges.source]
    resource += [2 * nodes + servers + edges.target, link[stated]]
    weights = [weight[nic], weight[nic], weight, weight, weight[stated]]
    total = np.bincount(np.concatenate(resource), np.concatenate(weights), len(where.rate))
    held: F64 = total.astype(np.float64)  # of no edge it counts integers
    return held


def connection_seconds(cluster: Cluster, edges: Edges, where: Resources) -> float:
    """Of the slowest connection, per byte of a replica's; 0 where connections have no rate of their
    own: two processes of different hosts have one, which carries what the edge sends."""
    outside = where.node[edges.source] != where.node[edges.target]
    if not cluster.connection_gbps or not outside.any():
        return 0.0
    return float(edges.weight[outside].max() / (cluster.connection_gbps * 1e9 / 8))
