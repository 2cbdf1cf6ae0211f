"""What can be congested on a cluster, how much of a message passes it, and which of it is alike.

Of hundreds of equal nodes one tells what all do. Servers and resources are parted so that servers
of a class load each class of resources alike, and resources of a class are loaded alike by each
class of servers: a linear program over them has the same optimum over the classes (Grohe, Kersting,
Mladenov and Selman, "Dimension reduction via colour refinement", 2014).
"""

from dataclasses import dataclass
from hashlib import blake2b
from itertools import count

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster
from autosync.simulator.backends.message_edges import Edges
from autosync.simulator.fabric import hosts_per_leaf, leaf_of_node

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Resources:
    """What can be congested. Per server s (rank or dedicated host): node i64[S].

    rate f64[R]: bytes a second: NICs out, NICs in, device ports out, device ports in, links of each
        leaf to an oversubscribed spine and from it, then the two directions of each stated link.
    link i64[nodes, nodes]: resource of a stated link from node to node, -1 without; link_only:
        such a link does not pass the NICs. leaf i64[nodes]: of each node; leaves: how many, 0 where
        the spine carries all that they send.
    pair_rate, pair_latency_seconds f64[nodes, nodes]: of one message from node to node.
    """

    node: NDArray[np.int64]
    rate: F64
    pair_rate: F64
    pair_latency_seconds: F64
    names: tuple[str, ...]
    link: NDArray[np.int64]
    link_only: NDArray[np.bool_]
    leaf: NDArray[np.int64]
    leaves: int

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
    leaf = np.array(leaf_of_node(cluster), dtype=np.int64)
    leaves = int(leaf.max()) + 1 if cluster.oversubscription > 1 else 0
    uplink = np.full(leaves, hosts_per_leaf(cluster) * nic.min() / cluster.oversubscription)
    for role in ("spine from leaf", "spine to leaf"):
        names += [f"{role} {place}" for place in range(leaves)]
        rates.append(uplink)
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
        leaf,
        leaves,
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
    if where.leaves:
        from_leaf, to_leaf = where.leaf[from_node], where.leaf[to_node]
        over, first = nic & (from_leaf != to_leaf), 2 * nodes + 2 * servers
        resource += [first + from_leaf[over], first + where.leaves + to_leaf[over]]
        weights += [weight[over], weight[over]]
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


I64 = NDArray[np.int64]

DECIMALS = 9
"""Loads that differ by less of the largest one are equal: sums differ in their last digits."""


@dataclass(frozen=True, slots=True)
class AlikeLoads:
    """Loads over G classes of servers and C classes of resources, seconds per byte.

    plain f64[P, C]: of message classes without a server. owned: for each operation of a server
    `(G, C)`.
    Each is the mean over the resources of a class.
    """

    plain: F64
    owned: tuple[F64, ...]


def alike_loads(plain: F64, owned: list[F64]) -> AlikeLoads:
    """plain `(P, R)` and, for each operation of a server, `(S, R)` seconds per byte.

    Of the servers of a class, which are equal but for rounding, the least loads count, so that a
    bound from them stays below.
    """
    server, resource = _classes(plain, owned)
    members = _indicator(resource)
    sizes = members.sum(axis=0)
    groups = [np.flatnonzero(server == group) for group in range(int(server.max(initial=-1)) + 1)]
    means = [each @ members / sizes for each in owned]
    least = [np.array([mean[group].min(axis=0) for group in groups]) for mean in means]
    return AlikeLoads(plain @ members / sizes, tuple(least))


def _classes(plain: F64, owned: list[F64]) -> tuple[I64, I64]:
    """The class of each server `(S,)` and each resource `(R,)`: refined until both stay."""
    server = np.zeros(len(owned[0]) if owned else 0, dtype=np.int64)
    resource = _refined(plain.T, np.zeros(plain.shape[1], dtype=np.int64))
    while owned:
        before = server.max(), resource.max()
        sums = [each @ _indicator(resource) for each in owned]
        server = _refined(np.hstack(sums), server)
        held = [_indicator(server).T @ each for each in owned]
        resource = _refined(np.vstack(held).T, resource)
        if before == (server.max(), resource.max()):
            break
    return server, resource


def _refined(values: F64, before: I64) -> I64:
    """Classes of rows that were in one and have equal values, `(n,)`."""
    largest = values.max(axis=0, initial=0.0)
    rounded = np.round(values / np.where(largest > 0, largest, 1.0), DECIMALS)
    return number_equal_rows(np.column_stack([before, rounded]))


def _indicator(class_of: I64) -> F64:
    """`(n, classes)`: one where a row is of the class."""
    result: F64 = (class_of[:, None] == np.arange(int(class_of.max(initial=-1)) + 1)).astype(float)
    return result


def number_equal_rows(*tables: F64) -> I64:
    """Rows that are equal in all tables, side by side, get one number, by first appearance; `(n,)`.

    By digests: sorting rows of thousands of values compares them many times.
    """
    numbers: dict[bytes, int] = {}
    fresh = count()
    result = np.empty(len(tables[0]), dtype=np.int64)
    for row in range(len(result)):
        digest = blake2b(digest_size=16)
        for table in tables:
            digest.update(np.add(table[row], 0.0).tobytes())  # -0.0 is 0.0
        key = digest.digest()
        if key not in numbers:
            numbers[key] = next(fresh)
        result[row] = numbers[key]
    return result
