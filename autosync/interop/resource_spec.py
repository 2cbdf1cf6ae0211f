"""AutoDist's resource specifications (YAML) and our clusters."""

from dataclasses import dataclass
from typing import Any, ClassVar

import yaml
from pydantic import ConfigDict

from autosync.cluster import Cluster
from autosync.cluster_file import MAX_DEVICES, strict_yaml
from autosync.documents import STRICT
from autosync.errors import InvalidInput, NotSupported
from autosync.interop.device_names import DeviceNames, gpu_count, names_of_devices
from autosync.interop.host_clusters import PAYLOAD_SHARE, HostHardware, cluster_of_hosts
from autosync.interop.host_list import Host

NODE_FIELDS = ("address", "chief", "gpus", "cpus", "network_bandwidth")
SSH_FIELDS = ("ssh_config", "ssh")
"""How AutoDist logs in: nothing that a prediction needs."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a resource specification leaves out and its user knows.

    gpu_type: of all GPUs, one of `autosync.devices`. intra_bandwidth_gbps: payload rate between
        the devices of a node; needed where a node has several.
    """

    gpu_type: str | None = None
    intra_bandwidth_gbps: float | None = None
    latency_us: float = 50.0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    cluster: Cluster
    devices: DeviceNames


def read_resource_spec(
    yaml_text: str, source: str, hardware: Hardware, name: str = "imported"
) -> ResourceSpec:
    """The cluster of a resource specification, and the names of its devices.

    Raises:
        InvalidInput: names the node and what is wrong or missing.
    """
    nodes = _stated_nodes(yaml_text, source)
    stated = HostHardware(
        device_type=hardware.gpu_type,
        intra_bandwidth_gbps=hardware.intra_bandwidth_gbps,
        latency_us=hardware.latency_us,
    )
    cluster = cluster_of_hosts(_hosts(nodes), stated, source, name)
    gpus = {node.address: node.gpus for node in nodes}
    cpus = {node.address: node.cpus for node in nodes}
    return ResourceSpec(cluster, names_of_devices(cluster, gpus, cpus))


def hosts_of_spec(yaml_text: str, source: str) -> tuple[Host, ...]:
    """The hosts of a resource specification.

    Ranks are the GPUs, node by node. Without any GPU they are the CPUs; beside GPUs, a node
    without one is a dedicated server host.

    Raises:
        InvalidInput: names the node and what is wrong.
    """
    return _hosts(_stated_nodes(yaml_text, source))


def _stated_nodes(yaml_text: str, source: str) -> "list[_StatedNode]":
    data = strict_yaml(yaml_text, source)
    listed = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(listed, list) or not listed:
        raise _refused(source, "lists no nodes", "A specification has them under `nodes:`.")
    extra = [key for key in data if key not in ("nodes", *SSH_FIELDS)]
    if extra:
        raise _refused(source, f"has an unknown field {str(extra[0])!r}")
    return [_StatedNode.of(node, position, source) for position, node in enumerate(listed, 1)]


def _hosts(nodes: "list[_StatedNode]") -> tuple[Host, ...]:
    if any(node.gpus for node in nodes):
        return tuple(
            Host(
                node.address,
                len(node.gpus) or None,
                port_gbps=node.port_gbps,
                on_gpus=bool(node.gpus),
                server_only=not node.gpus,
            )
            for node in nodes
        )
    return tuple(
        Host(node.address, len(node.cpus), "cpu", node.port_gbps, on_gpus=False) for node in nodes
    )


def write_resource_spec(cluster: Cluster) -> str:
    """The cluster as a resource specification. What the format cannot express is
    written into its comments.

    Raises:
        NotSupported: a node could not be told apart from one of another kind.
    """
    with_gpus = any(gpu_count(node) for node in cluster.nodes)
    nodes: list[dict[str, Any]] = []
    for position, node in enumerate(cluster.nodes):
        gpus = gpu_count(node)
        if gpus not in (0, node.ranks) or (not gpus and node.server_only is not with_gpus):
            raise NotSupported(
                f"node {node.address!r} has {gpus} GPUs for {node.ranks} replicas"
                f"{' and is a server host' if node.server_only else ''}: in a resource "
                "specification replicas run on all GPUs, or on CPUs where there is no GPU at all.",
                thing=f"node {node.address}",
                value="mixes CPU and GPU devices",
            )
        stated: dict[str, Any] = {"address": node.address}
        if position == 0:
            stated["chief"] = True
        if gpus:
            stated["gpus"] = list(range(gpus))
        stated["cpus"] = list(range(1 if gpus or node.server_only else node.ranks))
        stated["network_bandwidth"] = round(node.bandwidth_gbps / PAYLOAD_SHARE, 9)
        nodes.append(stated)
    comments = "".join(f"# {sentence}\n" for sentence in left_out_of_spec(cluster))
    return comments + yaml.safe_dump({"nodes": nodes}, sort_keys=False, allow_unicode=True)


def left_out_of_spec(cluster: Cluster) -> tuple[str, ...]:
    """What a resource specification cannot express of this cluster, a sentence each."""
    sentences = []
    for node in cluster.nodes:
        for device in node.devices:
            memory = "" if device.memory_gb is None else f", {device.memory_gb:g} GB"
            slow = "" if device.slowdown == 1 else f", {device.slowdown:g} times slower"
            sentences.append(f"{node.address}: {device.count} x {device.type}{memory}{slow}")
        inside = node.intra_bandwidth_gbps
        within = "" if inside is None else f", {inside:g} Gbit/s inside the node"
        sentences.append(f"{node.address}: latency {node.latency_us:g} us{within}")
    sentences += [
        f"{link.nodes[0]} to {link.nodes[1]}: {link.bandwidth_gbps:g} Gbit/s of payload"
        for link in cluster.links
    ]
    if cluster.costs:
        sentences.append(f"{len(cluster.costs)} fitted message costs, backend {cluster.backend}")
    if cluster.overlap_slowdown is not None:
        sentences.append(f"compute takes {cluster.overlap_slowdown:.1%} longer beside messages")
    if cluster.transfer_slowdown:
        sentences.append(f"transfers take {cluster.transfer_slowdown:.0%} longer during backward")
    if cluster.connection_gbps:
        sentences.append(f"one connection carries {cluster.connection_gbps:g} Gbit/s of payload")
    if cluster.link_seconds_per_send:
        each = cluster.link_seconds_per_send * 1e6
        sentences.append(f"each send holds its links for {each:.1f} us besides its bytes")
    return tuple(sentences)


@dataclass(frozen=True, slots=True)
class _StatedNode:
    address: str
    gpus: tuple[int, ...]
    cpus: tuple[int, ...]
    port_gbps: float | None

    @classmethod
    def of(cls, data: Any, position: int, source: str) -> "_StatedNode":
        if not isinstance(data, dict) or not isinstance(data.get("address"), str | int):
            raise _refused(source, f"node number {position} has no address")
        where = f"{source}, node {str(data['address'])!r}"
        unknown = [key for key in data if key not in (*NODE_FIELDS, *SSH_FIELDS)]
        if unknown:
            raise _refused(where, f"has an unknown field {str(unknown[0])!r}")
        rate = data.get("network_bandwidth")
        sound = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < 1e6
        if rate is not None and not sound:
            raise _refused(where, f"network_bandwidth must be a positive number, got {rate!r}")
        if not isinstance(data.get("chief", False), bool):
            raise _refused(where, f"chief must be true or false, got {data['chief']!r}")
        gpus, cpus = (_device_numbers(data.get(kind), kind, where) for kind in ("gpus", "cpus"))
        return cls(str(data["address"]), gpus, cpus or (0,), None if rate is None else float(rate))


def _device_numbers(data: Any, kind: str, where: str) -> tuple[int, ...]:
    given = [] if data is None else data
    sound = isinstance(given, list) and all(
        isinstance(number, int) and not isinstance(number, bool) and 0 <= number < MAX_DEVICES
        for number in given
    )
    if not sound or len(set(given)) != len(given) or len(given) > MAX_DEVICES:
        raise _refused(
            where, f"{kind} must be a list of different numbers below {MAX_DEVICES}, got {data!r}"
        )
    return tuple(given)


def _refused(where: str, why: str, remedy: str = "") -> InvalidInput:
    return InvalidInput(
        f"{where}: {why}.",
        thing=where,
        value=why,
        remedy=remedy or f"A node has {', '.join(NODE_FIELDS)}.",
    )
