"""Writes the bundled clusters of RTX 2080 Ti nodes at the fitted rates and startups."""

from dataclasses import replace
from typing import Literal

from autosync.bundled_data import data_folder
from autosync.cluster import Cluster, Device, MessageCost, Node
from autosync.simulator.cost.applied_constants import port_gbps
from autosync.simulator.cost.fitted_constants import Constants, NetworkConstants

SIZES = (1, 2, 4, 8, 16)
"""Nodes of four GPUs; server hosts are as many as worker hosts. One without is no network's."""
LATENCY_US = {"10gbe": 50, "ib100": 5}
HALVES: tuple[Literal["all_to_all", "all_gather"], ...] = ("all_to_all", "all_gather")
"""A reduce-scatter (whose cost goes by all_to_all) and an all-gather are half a ring each."""
WORDS = {"10gbe": "10 Gbit Ethernet with TCP", "ib100": "100 Gbit InfiniBand with RDMA"}


def write_clusters(constants: Constants) -> None:
    """One node alone, then every network and size, without and with server hosts."""
    folder = data_folder("clusters")
    made = [cluster_at(constants, None, 1, False)]
    for network in WORDS:
        for nodes in SIZES:
            made += [
                cluster_at(constants, network, nodes, servers)
                for servers in (False, True)[nodes == 1 :]
            ]
    for cluster in made:
        (folder / f"{cluster.name}.yaml").write_text(cluster_text(cluster))


def cluster_at(constants: Constants, network: str | None, nodes: int, servers: bool) -> Cluster:
    """So many nodes, and as many server hosts, at the fitted rates and startups."""
    latency = LATENCY_US.get(network or "", 0)
    between = f", {WORDS[network]}" if network else ""
    hosts = f" and {nodes} server host{'s' * (nodes > 1)}" if servers else ""
    workers = [
        Node(f"10.0.0.{i}", (Device(constants.device, 4),), 1.0, 1.0, latency)
        for i in range(1, nodes + 1)
    ]
    dedicated = [
        Node(f"10.0.1.{i}", (), 1.0, None, latency, True) for i in range(1, nodes * servers + 1)
    ]
    suffix = (f"-{network}" if network else "") + ("-servers" if servers else "")
    cluster = Cluster(
        name=f"{constants.name}-{nodes}x4{suffix}",
        nodes=(*workers, *dedicated),
        backend="nccl",
        description=f"{nodes} node{'s' * (nodes > 1)} of 4 RTX 2080 Ti (PCIe){hosts}{between}",
    )
    return with_network(cluster, constants, network)


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


def cluster_text(cluster: Cluster) -> str:
    """The YAML of such a cluster."""
    lines = [
        "# PCIe nodes of four RTX 2080 Ti. Rates are payload. They and the costs were fitted to",
        "# published measurements of such a cluster: datasets/measurements, docs/gpu-clusters.md.",
        "# Written by benchmarks/published/published_rows.py --fit.",
        f"name: {cluster.name}",
        f"description: {cluster.description}",
        f"backend: {cluster.backend}",
        f"transfer_slowdown: {cluster.transfer_slowdown!r}",
        "nodes:",
    ]
    for node in cluster.nodes:
        kind = (
            "server_only: true, "
            if node.server_only
            else f"devices: [{{type: {node.devices[0].type}, count: {node.ranks}}}], "
        )
        intra = "" if node.server_only else f"intra_bandwidth_gbps: {node.intra_bandwidth_gbps!r}, "
        lines.append(
            f"  - {{address: {node.address}, {kind}bandwidth_gbps: {node.bandwidth_gbps!r}, "
            f"{intra}latency_us: {node.latency_us:g}}}"
        )
    lines.append("costs:")
    lines += [
        f"  - {{kind: {cost.kind}, startup_seconds: {cost.startup_seconds!r}, "
        f"startup_seconds_per_worker: {cost.startup_seconds_per_worker!r}}}"
        for cost in cluster.costs
    ]
    return "\n".join(lines) + "\n"
