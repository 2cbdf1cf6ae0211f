"""Clusters at fitted constants: rates, startups, connections and engines."""

from dataclasses import replace
from typing import Literal

from autosync.cluster import Cluster, MessageCost, Node
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.fitted_constants import Constants, NetworkConstants

HALVES: tuple[Literal["all_to_all", "all_gather"], ...] = ("all_to_all", "all_gather")
"""A reduce-scatter (whose cost goes by all_to_all) and an all-gather are half a ring each."""

RDMA_LATENCY_US = 20.0
"""Nodes of a lower latency are taken to use RDMA: it takes 1 to 5 us, TCP tens."""

CONNECTION_GBPS = 12.0
"""Payload of one TCP connection between two hosts under NCCL. On ports that carried 25 Gbit/s with
several connections, training by all-reduce gained nothing above 10 to 15 (PACE, section VI-D)."""
CONNECTION_RANGE_GBPS = (10.0, 15.0)


def uses_tcp(cluster: Cluster) -> bool:
    """Of several hosts, by backend and stated latency."""
    slow = any(node.latency_us >= RDMA_LATENCY_US for node in cluster.nodes)
    return len(cluster.nodes) > 1 and (backend_of(cluster).always_tcp or slow)


def with_engine(cluster: Cluster, seconds: float) -> Cluster:
    """The cluster under an engine that spends `seconds` on each message."""
    others = tuple(cost for cost in cluster.costs if cost.kind != "engine")
    return replace(cluster, costs=(*others, MessageCost("engine", seconds)))


def with_network(cluster: Cluster, constants: Constants, network: str | None) -> Cluster:
    """The cluster at the fitted rates and startups of one of the networks (None: of no network,
    for nodes by themselves)."""
    fitted = constants.networks[network] if network is not None else None
    nodes = tuple(_at_rate(node, constants, fitted) for node in cluster.nodes)
    hop_seconds = fitted.hop_seconds if fitted else constants.hop_seconds
    return replace(
        cluster,
        nodes=nodes,
        costs=ring_costs(cluster, constants, hop_seconds),
        transfer_slowdown=constants.transfer_slowdown,
    )


def port_gbps(constants: Constants, network: NetworkConstants) -> float:
    """Payload of a worker host's NIC: that of its port, or of the slot it sits in."""
    return min(network.wire_gbps * network.payload_share, constants.intra_bandwidth_gbps)


def _at_rate(node: Node, constants: Constants, fitted: NetworkConstants | None) -> Node:
    intra = constants.intra_bandwidth_gbps
    rate = port_gbps(constants, fitted) if fitted else intra
    if node.server_only:
        served = fitted.server_bandwidth_gbps if fitted else None
        return replace(node, bandwidth_gbps=min(rate, served or rate))
    return replace(node, bandwidth_gbps=rate, intra_bandwidth_gbps=intra)


def ring_costs(
    cluster: Cluster, constants: Constants, hop_seconds: float
) -> tuple[MessageCost, ...]:
    """Startups of collectives: one launch, and 2 (m - 1) steps of a ring of m devices.

    A step takes the mean over the ring of the hops inside nodes and those from host to host
    (`hop_seconds`). Halves of an all-reduce take half of both.
    """
    workers = cluster.world_size
    hosts = sum(node.ranks > 0 for node in cluster.nodes)
    outside = hosts / workers if hosts > 1 else 0.0
    step_seconds = outside * hop_seconds + (1.0 - outside) * constants.hop_seconds
    per_worker = 2.0 * (workers - 1) / workers * step_seconds
    start = constants.message_seconds
    return (
        MessageCost("all_reduce", start, per_worker),
        *(MessageCost(kind, start / 2, per_worker / 2) for kind in HALVES),
    )


def with_borrowed_constants(cluster: Cluster, constants: Constants) -> Cluster:
    """Another cluster with what these constants tell of it; what its file states stays.

    Startups are taken where the file states none, with a hop between hosts as on the fitted network
    of the same transport. One TCP connection reaches CONNECTION_GBPS.
    """
    tcp = uses_tcp(cluster)
    hops = {each.transport: each.hop_seconds for each in constants.networks.values()}
    fitted = ring_costs(cluster, constants, hops["tcp" if tcp else "rdma"])
    stated = {cost.kind for cost in cluster.costs}
    return replace(
        cluster,
        costs=(*cluster.costs, *(cost for cost in fitted if cost.kind not in stated)),
        transfer_slowdown=cluster.transfer_slowdown or constants.transfer_slowdown,
        connection_gbps=cluster.connection_gbps or (CONNECTION_GBPS if tcp else 0.0),
    )
