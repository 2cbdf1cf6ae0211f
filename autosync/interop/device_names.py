"""AutoDist's names of devices ("host:GPU:0", "host:CPU:0") and the ranks and servers they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from autosync.cluster import Cluster, Node
from autosync.devices import DEVICE_TYPES
from autosync.errors import InvalidInput

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
