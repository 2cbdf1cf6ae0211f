"""AutoDist's resource specifications (YAML), our clusters, and names of devices, "host:GPU:0"."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from pydantic import ConfigDict

from autosync.cluster import Cluster, Node
from autosync.cluster.cluster_file import MAX_DEVICES, strict_yaml
from autosync.cluster.devices import DEVICE_TYPES
from autosync.documents import STRICT
from autosync.errors import InvalidInput
from autosync.interop import refused_file
from autosync.interop.host_clusters import HostHardware, cluster_of_hosts
from autosync.interop.host_list import Host

NODE_FIELDS = ("address", "chief", "gpus", "cpus", "network_bandwidth")
SSH_FIELDS = ("ssh_config", "ssh")
"""How AutoDist logs in: nothing that a prediction needs."""

_refused = partial(refused_file, remedy=f"A node has {', '.join(NODE_FIELDS)}.")


Numbers = Mapping[str, tuple[int, ...]]
"""By host, the numbers its devices have there; 0, 1, ... where a host is not named."""


@dataclass(frozen=True, slots=True)
class DeviceNames:
    """ranks: the replica devices. servers: everything that can own a shard; a host's CPUs are its
    first rank, which shares the NIC with them, or the dedicated server host itself."""

    ranks: Mapping[str, int]
    servers: Mapping[str, int]
    replica: tuple[str, ...] = field(init=False)
    destination: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = {rank: name for name, rank in self.ranks.items()}
        object.__setattr__(self, "replica", tuple(names[rank] for rank in range(len(names))))
        owners: dict[int, str] = {}
        for name, server in sorted(self.servers.items(), key=lambda item: ":GPU:" in item[0]):
            owners.setdefault(server, name)
        object.__setattr__(self, "destination", tuple(owners[s] for s in range(len(owners))))

    def rank(self, name: str) -> int:
        """Raises InvalidInput: no replica runs on the device of that name."""
        if name not in self.ranks:
            raise _unknown(name, "replica device", self.ranks)
        return self.ranks[name]

    def server(self, name: str) -> int:
        """Raises InvalidInput: the cluster has no such device."""
        if name not in self.servers:
            raise _unknown(name, "reduction destination", self.servers)
        return self.servers[name]


def names_of_devices(
    cluster: Cluster, gpus: Numbers | None = None, cpus: Numbers | None = None
) -> DeviceNames:
    """Name a cluster's devices as AutoDist does.

    destination[s] of the result is what a strategy calls server s: the host's first CPU for its
    first rank, as AutoDist's builders do, and the device itself for any other.
    """
    ranks: dict[str, int] = {}
    servers: dict[str, int] = {}
    for node in (node for node in cluster.nodes if not node.server_only):
        first = len(ranks)
        gpu_numbers = _numbers(node, gpus, gpu_count(node))
        cpu_ranks = node.ranks - gpu_count(node)
        cpu_numbers = _numbers(node, cpus, max(cpu_ranks, 1))
        kinds = {True: iter(gpu_numbers), False: iter(cpu_numbers)}
        for device in node.devices:
            is_gpu = DEVICE_TYPES[device.type].is_gpu
            for _ in range(device.count):
                kind = "GPU" if is_gpu else "CPU"
                ranks[f"{node.address}:{kind}:{next(kinds[is_gpu])}"] = len(ranks)
        for number in cpu_numbers:
            servers.setdefault(f"{node.address}:CPU:{number}", first)
        servers |= {name: rank for name, rank in ranks.items() if rank >= first}
    dedicated = (node for node in cluster.nodes if node.server_only)
    for server, node in enumerate(dedicated, cluster.world_size):
        servers |= {f"{node.address}:CPU:{number}": server for number in _numbers(node, cpus, 1)}
    return DeviceNames(ranks, servers)


def gpu_count(node: Node) -> int:
    return sum(device.count for device in node.devices if DEVICE_TYPES[device.type].is_gpu)


def _numbers(node: Node, stated: Numbers | None, count: int) -> tuple[int, ...]:
    return (stated or {}).get(node.address) or tuple(range(count))


def _unknown(name: str, what: str, known: Mapping[str, int]) -> InvalidInput:
    return InvalidInput(
        f"{what} {name!r} is no device of the cluster.",
        thing=what,
        value=name,
        remedy=f"Its devices are {', '.join(list(known)[:8])}{', ...' if len(known) > 8 else ''}.",
    )


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a resource specification leaves out and its user knows.

    gpu_type: of all GPUs, one of `autosync.cluster.devices`. intra_bandwidth_gbps: payload rate
        between the devices of a node; needed where a node has several.
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
        raise _refused(source, "lists no nodes", remedy="A specification has them under `nodes:`.")
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
