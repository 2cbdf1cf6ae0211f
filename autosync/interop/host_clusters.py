"""Clusters of listed hosts: what the list leaves out is stated, never guessed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from autosync.cluster import Cluster, Device, Node
from autosync.cluster.devices import DEVICE_TYPES, device_type_of_gpu, gpu_types
from autosync.cluster.link_rates import StatedTransport, payload_share
from autosync.errors import InvalidInput, NotSupported
from autosync.interop import refused_file
from autosync.interop.gpu_topology import GpuTopology
from autosync.interop.host_list import MAX_HOSTS, Host

TRANSPORT_LATENCY_US: dict[StatedTransport, float] = {
    "tcp": 50.0,
    "roce": 5.0,
    "infiniband": 5.0,
    "efa": 15.0,
    "gpudirect-tcpx": 30.0,
    "gpudirect-tcpxo": 30.0,
    "slingshot": 5.0,
}
"""One way between two hosts: TCP, GPUDirect and RDMA as in the bundled clusters, EFA as AWS states
it."""
ASSUMED_TRANSPORT: StatedTransport = "tcp"

RAY_MEMORY_SUFFIXES = {"A100-40G": "a100", "A100-80G": "a100-80gb"}
"""Names of Ray's that say an A100's memory in another way than its driver."""
MAX_RAY_GPUS = 1024


@dataclass(frozen=True, slots=True)
class HostHardware:
    """What the user states of all hosts of a list. It is used where the list says something else.

    port_gbps: a port's rate on the wire, of `nics` ports. device_type: of their devices. slots:
    devices a host. intra_bandwidth_gbps: payload rate between a host's devices, needed where it
    has several. transport: a key of TRANSPORT_LATENCY_US, which a stated latency replaces.
    topology: of one of the hosts; it gives devices, ports and rates that neither the list nor an
    option states.
    """

    port_gbps: float | None = None
    device_type: str | None = None
    slots: int | None = None
    intra_bandwidth_gbps: float | None = None
    latency_us: float | None = None
    nics: int | None = None
    transport: StatedTransport | None = None
    topology: GpuTopology | None = None

    @property
    def stated_latency_us(self) -> float:
        if self.latency_us is not None:
            return self.latency_us
        return TRANSPORT_LATENCY_US[self.transport or ASSUMED_TRANSPORT]

    @property
    def payload_share(self) -> float:
        """Of a port's rate on the wire."""
        return payload_share(self.transport or ASSUMED_TRANSPORT)

    @property
    def ports(self) -> int:
        return self.nics or (self.topology.nics if self.topology else 0) or 1

    def device_type_of(self, host: Host) -> str | None:
        stated = None if host.on_gpus is False else self.device_type
        return stated or host.device_type

    def slots_of(self, host: Host) -> int | None:
        seen = self.topology.gpus if self.topology else None
        return self.slots or host.slots or seen


def cluster_of_hosts(
    hosts: Sequence[Host], hardware: HostHardware, source: str, name: str = "imported"
) -> Cluster:
    """Ranks count the hosts' slots in the order of the list.

    Raises:
        InvalidInput: names the host, and what is not stated of it.
    """
    if hardware.port_gbps is not None and not 0 < hardware.port_gbps < 1e6:
        raise InvalidInput(
            f"the rate of a port must be positive, got {hardware.port_gbps} Gbit/s.",
            thing="port_gbps",
            value=hardware.port_gbps,
            remedy="State the rate on the wire in Gbit/s: 100 for 100 Gbit Ethernet.",
        )
    nodes = tuple(_node(host, hardware, source) for host in hosts)
    on_gpus = any(DEVICE_TYPES[device.type].is_gpu for node in nodes for device in node.devices)
    assumed = hardware.transport is None and hardware.latency_us is None and len(nodes) > 1
    return Cluster(
        name,
        nodes,
        "nccl" if on_gpus else "gloo",
        transport=(hardware.transport or "") if on_gpus else "",
        description=f"from {source}; rates are {hardware.payload_share:.1%} of those of "
        f"{hardware.ports} port{'s' if hardware.ports > 1 else ''} a host"
        + (f"; {ASSUMED_TRANSPORT.upper()} is assumed" if assumed else ""),
    )


def notes_on_hosts(hosts: Sequence[Host], hardware: HostHardware) -> tuple[str, ...]:
    """What of the list and the topology is not used or was assumed, a sentence each.

    They concern hosts of which `cluster_of_hosts` has made a cluster.
    """
    notes = _overruled(hosts, hardware)
    kinds = sorted({kind for host in hosts if (kind := _estimated_between(host, hardware))})
    if (seen := hardware.topology) is not None:
        for kind in kinds:
            notes += seen.notes_on_rate(kind)
        if hardware.nics is None:
            notes += seen.port_notes
            if not seen.nics:
                notes.append("the topology shows no RDMA port: one port a host is assumed (--nics)")
        elif seen.nics not in (0, hardware.nics):
            notes.append(f"--nics {hardware.nics} is used, not the {seen.nics} of the topology")
    if len(hosts) > 1 and hardware.transport is None and hardware.latency_us is None:
        latency = TRANSPORT_LATENCY_US[ASSUMED_TRANSPORT]
        notes.append(
            f"neither --transport nor --latency-us is stated: {ASSUMED_TRANSPORT.upper()} is "
            f"assumed, {latency:g} us between hosts. For RDMA, which is much faster, state "
            "--transport infiniband, roce or efa (--help lists all)"
        )
    return tuple(notes)


def _overruled(hosts: Sequence[Host], hardware: HostHardware) -> list[str]:
    """A sentence for each option, or count of the list, that replaces what something else says."""
    workers = [host for host in hosts if not host.server_only]
    stated: dict[str, tuple[object, set[object]]] = {
        "--per-host": (hardware.slots, {host.slots for host in workers}),
        "--device": (
            hardware.device_type,
            {host.device_type for host in workers if host.on_gpus is not False},
        ),
        "--port-gbps": (hardware.port_gbps, {host.port_gbps for host in hosts}),
    }
    notes = []
    for option, (value, listed) in stated.items():
        other = ", ".join(sorted(map(str, listed - {None, value}))[:8])
        if value is not None and other:
            notes.append(f"{option} {value} is used, not the list's {other}")
    counts = {hardware.slots_of(host) for host in workers}
    if hardware.topology is not None and (other_counts := counts - {hardware.topology.gpus}):
        used = ", ".join(sorted(map(str, other_counts)))
        notes.append(f"the topology shows {hardware.topology.gpus} GPUs a host: {used} are used")
    return notes


def _estimated_between(host: Host, hardware: HostHardware) -> str | None:
    """The device type by which the rate between the host's devices is estimated; None where it
    is stated, or not needed."""
    stated = hardware.intra_bandwidth_gbps is not None or hardware.topology is None
    if stated or host.server_only or (hardware.slots_of(host) or 1) < 2:
        return None
    return hardware.device_type_of(host)


def hosts_of_ray(nodes: Sequence[Mapping[str, Any]]) -> tuple[Host, ...]:
    """The hosts of `ray.nodes()` that are alive, by address. Where some have GPUs, those without
    (a head, say) are left out. Without any GPU each host has as many slots as are stated, and those
    without a CPU (where `autosync` runs, say) are left out.

    Raises:
        InvalidInput: no host is alive, or a GPU count is no whole number.
    """
    alive = [node for node in nodes if node.get("Alive")]
    gpus = [float(node.get("Resources", {}).get("GPU", 0)) for node in alive]
    hosts = []
    for node, count in zip(alive, gpus, strict=True):
        address = str(node.get("NodeManagerAddress", ""))
        if count != int(count) or not 0 <= count <= MAX_RAY_GPUS:
            raise refused_file(address, f"has {count:g} GPUs", "Ray must state a whole number.")
        if count or (not any(gpus) and node.get("Resources", {}).get("CPU")):
            device_type = _ray_device(node) if count else "cpu"
            hosts.append(Host(address, int(count) or None, device_type))
    if not hosts or len(hosts) > MAX_HOSTS:
        raise refused_file(
            "the Ray cluster", f"has {len(hosts)} hosts alive", "See `ray list nodes`."
        )
    return tuple(sorted(hosts, key=lambda host: host.address))


def _ray_device(node: Mapping[str, Any]) -> str | None:
    """Of a resource such as `accelerator_type:A100`; None where Ray states none. A name of no known
    type stays, for `cluster_of_hosts` to refuse where no option states another."""
    prefix = "accelerator_type:"
    keys: list[str] = list(node["Resources"])
    named = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
    if not named:
        return None
    try:
        return RAY_MEMORY_SUFFIXES.get(named[0]) or device_type_of_gpu(named[0])
    except NotSupported:
        return named[0]


def _node(host: Host, hardware: HostHardware, source: str) -> Node:
    where = f"{source}, host {host.address!r}"
    rate = hardware.port_gbps or host.port_gbps
    if rate is None:
        raise refused_file(
            where,
            "the rate of its port is not stated",
            "State the rate on the wire in Gbit/s (--port-gbps; in a specification of AutoDist's "
            "network_bandwidth, for which AutoDist would assume 1).",
        )
    bandwidth_gbps = round(rate * hardware.ports * hardware.payload_share, 9)
    latency_us = hardware.stated_latency_us
    if host.server_only:
        return Node(
            host.address, (), bandwidth_gbps, None, latency_us, True, hardware.ports, nic_gbps=rate
        )
    kind = hardware.device_type_of(host)
    known = gpu_types() if host.on_gpus else tuple(DEVICE_TYPES)
    if kind not in known:
        given = f"is {kind!r}, which is none" if kind else "is not stated"
        raise refused_file(
            where,
            f"the type of its {'GPUs' if host.on_gpus else 'devices'} {given}",
            f"State it (--device; gpu_type in a file of facts): {', '.join(known)}.",
        )
    slots = hardware.slots_of(host)
    if slots is None:
        raise refused_file(where, "how many devices it has is not stated", "State it (--per-host).")
    return Node(
        host.address,
        (Device(kind, slots),),
        bandwidth_gbps,
        _between(host, slots, hardware, where),
        latency_us,
        nics=hardware.ports,
        nic_gbps=rate,
        **_gpu_links(kind, hardware),
    )


class _GpuLinks(TypedDict):
    nvswitch: bool
    rails: bool
    gpu_link: Literal["", "nvlink", "pcie"]


def _gpu_links(kind: str, hardware: HostHardware) -> _GpuLinks:
    """What the topology shows of a host's GPUs; nothing without one."""
    seen, device = hardware.topology, DEVICE_TYPES[kind]
    if seen is None or not device.is_gpu:
        return _GpuLinks(nvswitch=False, rails=False, gpu_link="")
    return _GpuLinks(
        nvswitch=seen.switched(device.nvlinks),
        rails=seen.rails and hardware.nics in (None, seen.nics),
        gpu_link=seen.gpu_link(kind),
    )


def _between(host: Host, slots: int, hardware: HostHardware, where: str) -> float | None:
    """Payload rate in Gbit/s between the devices of the host; None where it has one."""
    if slots == 1 or hardware.intra_bandwidth_gbps is not None:
        return None if slots == 1 else hardware.intra_bandwidth_gbps
    estimated = _estimated_between(host, hardware)
    if estimated is None or hardware.topology is None:
        raise refused_file(
            where,
            f"has {slots} devices, but the bandwidth between them is not stated",
            "State a payload rate in Gbit/s (--intra-gbps), or give `nvidia-smi topo -m` (--topo).",
        )
    return hardware.topology.intra_bandwidth_gbps(device_type_of_gpu(estimated, estimated))
