"""Writes the bundled clusters of RTX 2080 Ti nodes at the fitted rates and startups."""

from autosync.bundled_data import data_folder
from autosync.simulator.cost.fitted_constants import HALVES, Constants

SIZES = (1, 2, 4, 8, 16)
"""Nodes of four GPUs; server hosts are as many as worker hosts. One without is no network's."""
LATENCY_US = {"10gbe": 50, "ib100": 5}
WORDS = {"10gbe": "10 Gbit Ethernet with TCP", "ib100": "100 Gbit InfiniBand with RDMA"}


def write_clusters(constants: Constants) -> None:
    """One node alone, then every network and size, without and with server hosts."""
    folder = data_folder("clusters")
    texts = {"rtx-2080-ti-1x4": cluster_text(constants, "node", 1, False)}
    for network in WORDS:
        for nodes in SIZES:
            for servers in (False, True)[nodes == 1 :]:
                name = f"rtx-2080-ti-{nodes}x4-{network}{'-servers' if servers else ''}"
                texts[name] = cluster_text(constants, network, nodes, servers)
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text.replace("NAME", name, 1))


def cluster_text(constants: Constants, network: str, nodes: int, servers: bool) -> str:
    """The YAML of a cluster whose name is still NAME."""
    fitted = constants.networks[network]
    startups = fitted if nodes > 1 else constants.networks["node"]
    intra = constants.intra_bandwidth_gbps
    rate = fitted.bandwidth_gbps or intra
    latency = LATENCY_US.get(network, 0)
    between = f", {WORDS[network]}" if network in WORDS else ""
    hosts = f" and {nodes} server host{'s' * (nodes > 1)}" if servers else ""
    lines = [
        "# PCIe nodes of four RTX 2080 Ti. Rates are payload. They and the costs were fitted to",
        "# published measurements of such a cluster: datasets/measurements, docs/gpu-clusters.md.",
        "# Written by benchmarks/published_rows.py --fit.",
        "name: NAME",
        f"description: {nodes} node{'s' * (nodes > 1)} of 4 RTX 2080 Ti (PCIe){hosts}{between}",
        "backend: nccl",
        "nodes:",
    ]
    lines += [
        f"  - {{address: 10.0.0.{node}, devices: [{{type: rtx-2080-ti, count: 4}}], "
        f"bandwidth_gbps: {rate:g}, intra_bandwidth_gbps: {intra:g}, latency_us: {latency}}}"
        for node in range(1, nodes + 1)
    ]
    server_rate = fitted.server_bandwidth_gbps or rate
    lines += [
        f"  - {{address: 10.0.1.{node}, server_only: true, bandwidth_gbps: {server_rate:g}, "
        f"latency_us: {latency}}}"
        for node in range(1, nodes * servers + 1)
    ]
    lines.append("costs:")
    for kind, share in (("all_reduce", 1.0), *((half, 0.5) for half in HALVES)):
        startup = startups.startup_seconds * share
        per_worker = startups.startup_seconds_per_worker * share
        lines.append(
            f"  - {{kind: {kind}, startup_seconds: {startup:.6g}, "
            f"startup_seconds_per_worker: {per_worker:.6g}}}"
        )
    return "\n".join(lines) + "\n"
