"""Clusters of listed hosts: what the list leaves out is stated, never guessed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosync.cluster import Cluster, Device, Node
from autosync.devices import DEVICE_TYPES, device_type_of_gpu
from autosync.errors import InvalidInput
from autosync.interop.host_list import MAX_HOSTS, Host
from autosync.interop.resource_spec import PAYLOAD_SHARE

RAY_MEMORY_SUFFIXES = {"A100-40G": "a100", "A100-80G": "a100-80gb"}
"""Names of Ray's that say an A100's memory in another way than its driver."""
MAX_RAY_GPUS = 1024


@dataclass(frozen=True, slots=True)
class HostHardware:
    """What is alike on all hosts of a list.

    device_type: of their devices; None where the list tells it. port_gbps: a port's rate on the
    wire, of `nics` ports. slots: devices a host, where the list does not say.
    intra_bandwidth_gbps: payload rate between a host's devices, needed where it has several.
    """

    port_gbps: float
    device_type: str | None = None
    slots: int | None = None
    intra_bandwidth_gbps: float | None = None
    latency_us: float = 50.0
    nics: int = 1


def cluster_of_hosts(
    hosts: Sequence[Host], hardware: HostHardware, source: str, name: str = "imported"
) -> Cluster:
    """Ranks count the hosts' slots in the order of the list.

    Raises:
        InvalidInput: names the host, and what is not stated of it.
    """
    if not 0 < hardware.port_gbps < 1e6:
        raise InvalidInput(
            f"the rate of a port must be positive, got {hardware.port_gbps} Gbit/s.",
            thing="port_gbps",
            value=hardware.port_gbps,
            remedy="State the rate on the wire in Gbit/s: 100 for 100 Gbit Ethernet.",
        )
    nodes = tuple(_node(host, hardware, source) for host in hosts)
    on_gpus = any(DEVICE_TYPES[device.type].is_gpu for node in nodes for device in node.devices)
    return Cluster(
        name,
        nodes,
        "nccl" if on_gpus else "gloo",
        description=f"from {source}; {PAYLOAD_SHARE:.1%} of {hardware.nics} x "
        f"{hardware.port_gbps:g} Gbit/s; `autosync probe` measures it",
    )


def hosts_of_ray(nodes: Sequence[Mapping[str, Any]]) -> tuple[Host, ...]:
    """The hosts of `ray.nodes()` that are alive, by address. Where some have GPUs, those without
    (a head, say) are left out; without any GPU each host has as many slots as are stated.

    Raises:
        InvalidInput: no host is alive, or a GPU count is no whole number.
        NotSupported: a GPU is of no known type.
    """
    alive = [node for node in nodes if node.get("Alive")]
    gpus = [float(node.get("Resources", {}).get("GPU", 0)) for node in alive]
    hosts = []
    for node, count in zip(alive, gpus, strict=True):
        address = str(node.get("NodeManagerAddress", ""))
        if count != int(count) or not 0 <= count <= MAX_RAY_GPUS:
            raise _refused(address, f"has {count:g} GPUs", "Ray must tell a whole number.")
        if count or not any(gpus):
            device_type = _ray_device(node) if count else "cpu"
            hosts.append(Host(address, int(count) or None, device_type))
    if not hosts or len(hosts) > MAX_HOSTS:
        raise _refused("the Ray cluster", f"has {len(hosts)} hosts alive", "See `ray list nodes`.")
    return tuple(sorted(hosts, key=lambda host: host.address))


def _ray_device(node: Mapping[str, Any]) -> str | None:
    """Of a resource such as `accelerator_type:A100`; None where Ray tells none."""
    prefix = "accelerator_type:"
    told = [key.removeprefix(prefix) for key in node["Resources"] if key.startswith(prefix)]
    if not told:
        return None
    return RAY_MEMORY_SUFFIXES.get(told[0]) or device_type_of_gpu(told[0])


def _node(host: Host, hardware: HostHardware, source: str) -> Node:
    where = f"{source}, host {host.address!r}"
    kind = hardware.device_type or host.device_type
    if kind not in DEVICE_TYPES:
        given = f"is {kind!r}, which is none" if kind else "is not stated"
        raise _refused(
            where,
            f"the type of its devices {given}",
            f"State it (--device): {', '.join(DEVICE_TYPES)}.",
        )
    slots = host.slots or hardware.slots
    if slots is None:
        raise _refused(where, "how many devices it has is not stated", "State it (--per-host).")
    if slots > 1 and hardware.intra_bandwidth_gbps is None:
        raise _refused(
            where,
            f"has {slots} devices, but the bandwidth between them is not stated",
            "State a payload rate in Gbit/s (--intra-gbps), or give `nvidia-smi topo -m`.",
        )
    return Node(
        host.address,
        (Device(kind, slots),),
        round(hardware.port_gbps * hardware.nics * PAYLOAD_SHARE, 9),
        hardware.intra_bandwidth_gbps if slots > 1 else None,
        hardware.latency_us,
        nics=hardware.nics,
    )


def _refused(where: str, why: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"{where}: {why}.", thing=where, value=why, remedy=remedy)
