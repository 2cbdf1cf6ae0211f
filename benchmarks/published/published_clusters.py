"""Writes the bundled clusters of RTX 2080 Ti nodes at the fitted rates and startups."""

from autosync.bundled_data import data_folder
from autosync.cluster import Cluster, Device, Node
from autosync.simulator.cost.applied_constants import with_network
from autosync.simulator.cost.fitted_constants import Constants

SIZES = (1, 2, 4, 8, 16)
"""Nodes of four GPUs; server hosts are as many as worker hosts. One without is no network's."""
LATENCY_US = {"10gbe": 50, "ib100": 5}
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
