"""What NCCL sees of a team of ranks: GPUs and their links, NICs, and the network between nodes.

NCCL searches this graph for rings and trees when a communicator is made. A cluster file states it
briefly; what a file leaves out follows from the types of its devices, and `Topology.assumed` says
what was taken for it.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from math import ceil

from autosync.cluster import Cluster, Node
from autosync.cluster.collective_curve import CollectiveCurve
from autosync.cluster.devices import DEVICE_TYPES, PCIE_3, PCIE_4
from autosync.cluster.link_rates import payload_share
from autosync.nccl_knobs import NcclKnobs
from autosync.simulator.fabric import Spine, assumption_of, spine_of

WITHOUT_PEER_TO_PEER = frozenset({"rtx-2080-ti", "rtx-3090", "rtx-4090"})
"""GeForce cards whose driver offers no peer-to-peer transfers over PCIe: bytes pass host memory."""

CUT_LINK_SHARE = 0.7
"""A node that states less than this share of its GPUs' NVLinks has links that are cut (an H800 has
200 of 450 GB/s); above it, what an all-reduce reaches is the constants' matter."""

GPUDIRECT_EFA_YEAR, SECOND_EFA_YEAR = 2020, 2022
"""From GPUs of which year on EFA reads their memory, and is of its second generation."""

PXN_SINCE = (2, 12)
"""NCCL's version, major and minor."""

RDMA_LATENCY_US = 20.0
"""Where no transport is stated: nodes of a lower latency are taken to use InfiniBand (1 to 5 us),
others TCP (tens)."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A team of `nodes` x `gpus_per_node` ranks.

    gpu: device type. nvlink: whether all GPUs of a node reach each other over NVLink. generation:
        of these, or of the PCIe slot. switched: through NVSwitch. peer_to_peer: without passing
        host memory.
    link_gbytes_per_second: of a GPU to the others of its node, one direction, data sheet.
    slot_gbytes_per_second: of a GPU's PCIe slot, one direction.
    nics, nic_gbytes_per_second: those that the team uses in a node, and the nominal rate of one.
    transport: what carries messages between nodes; "" for a single node.
    spine: between the leaf switches of its nodes; None where it carries all that they send.
    connection_gbytes_per_second: of one TCP connection, as the file states it; 0: not stated.
    nccl_version: major and minor; (0, 0): not stated.
    assumed: sentences of what the file leaves out and was taken for it.
    curves: collectives that were measured on the cluster, of any team.
    nccl: what NCCL is told.
    """

    nodes: int
    gpus_per_node: int
    gpu: str
    nvlink: bool
    generation: int
    switched: bool
    peer_to_peer: bool
    link_gbytes_per_second: float
    slot_gbytes_per_second: float
    nics: int = 1
    nic_gbytes_per_second: float = 0.0
    transport: str = ""
    spine: Spine | None = None
    connection_gbytes_per_second: float = 0.0
    nccl_version: tuple[int, int] = (0, 0)
    assumed: tuple[str, ...] = ()
    curves: tuple[CollectiveCurve, ...] = ()
    nccl: NcclKnobs = field(default_factory=NcclKnobs)

    def of_nodes(self, nodes: int) -> "Topology":
        """The same on another number of nodes."""
        if nodes == self.nodes:
            return self
        spine = self.spine.of_hosts(nodes) if self.spine else None
        return replace(self, nodes=nodes, spine=spine)

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def gpu_link(self) -> str:
        """The class of the links inside a node: nvlink4, pcie4, pcie3-without-p2p."""
        if self.nvlink:
            return f"nvlink{self.generation}"
        return f"pcie{self.generation}" + ("" if self.peer_to_peer else "-without-p2p")

    @property
    def network(self) -> str:
        """The class of the network between nodes; "" for a single one. EFA's first generation (with
        V100 and A100) has several times the latency of the second."""
        early = DEVICE_TYPES[self.gpu].year < SECOND_EFA_YEAR
        return "efa-early" if self.transport == "efa" and early else self.transport

    @property
    def staged(self) -> bool:
        """Whether a thread of each rank copies what it sends through host memory: TCP does, and EFA
        reads GPUs' memory from the A100 on."""
        before = DEVICE_TYPES[self.gpu].year < GPUDIRECT_EFA_YEAR
        return self.transport == "tcp" or (self.transport == "efa" and before)

    @property
    def node_gbytes_per_second(self) -> float:
        """Nominal, of all NICs of a node that the team uses."""
        return self.nics * self.nic_gbytes_per_second

    @property
    def uplink_gbytes_per_second(self) -> float:
        """Nominal, of a leaf's links to the spine that the team's bytes take; infinite where these
        carry all."""
        if self.spine is None:
            return float("inf")
        return self.spine.uplink_nics(self.nics) * self.nic_gbytes_per_second

    @property
    def passes_peers(self) -> bool:
        """Whether what is for a GPU of another rail moves to the NIC of that rail over NVLink
        first (NCCL's PXN, from 2.12 on)."""
        early = (0, 0) < self.nccl_version < PXN_SINCE
        return self.nvlink and not early and self.nccl.pxn is not False


def topology_of(cluster: Cluster) -> Topology:
    """What NCCL sees of all ranks of a cluster."""
    return topology_of_team(cluster, tuple(range(cluster.world_size)))


def topology_of_team(cluster: Cluster, team: tuple[int, ...]) -> Topology:
    """What NCCL sees of some ranks. Dedicated servers of the team are left out.

    Where nodes differ, the slowest links, the slowest NICs and the fullest node count.
    """
    node_of, world = cluster.node_of_server(), cluster.world_size
    held = Counter(sorted(int(node_of[rank]) for rank in team if rank < world) or [0])
    crosses = len(held) > 1
    assumed: list[str] = []
    transport = _transport(cluster, assumed) if crosses else ""
    spine = spine_of(cluster, tuple(held))
    if spine is not None and (sentence := assumption_of(cluster)):
        assumed.append(sentence)
    ports = [_ports_of(cluster.nodes[place], count, transport) for place, count in held.items()]
    links = min(ports, key=lambda each: each.link_gbytes_per_second)
    network = min(ports, key=lambda each: each.nics * each.nic_gbytes_per_second)
    return Topology(
        nodes=len(held),
        gpus_per_node=max(held.values()),
        gpu=links.gpu,
        nvlink=links.nvlink,
        generation=links.generation,
        switched=links.switched,
        peer_to_peer=links.nvlink or links.gpu not in WITHOUT_PEER_TO_PEER,
        link_gbytes_per_second=links.link_gbytes_per_second,
        slot_gbytes_per_second=links.slot_gbytes_per_second,
        nics=network.nics,
        nic_gbytes_per_second=network.nic_gbytes_per_second * crosses,
        transport=transport,
        spine=spine,
        connection_gbytes_per_second=cluster.connection_gbps / 8,
        nccl_version=_version(cluster.nccl_version),
        assumed=tuple(assumed),
        curves=cluster.curves,
        nccl=cluster.nccl or NcclKnobs(),
    )


@dataclass(frozen=True, slots=True)
class _Ports:
    """Of a node's slowest device and of its NICs; as `Topology` has them."""

    gpu: str
    nvlink: bool
    generation: int
    switched: bool
    link_gbytes_per_second: float
    slot_gbytes_per_second: float
    nics: int
    nic_gbytes_per_second: float


def _ports_of(node: Node, gpus: int, transport: str) -> _Ports:
    """What `gpus` of a node's GPUs use. They send through the NICs near them: half of the GPUs use
    half of the NICs."""
    types = {held.type: DEVICE_TYPES[held.type] for held in node.devices}
    nvlink = node.gpu_link_kind == "nvlink"
    # a bridge joins two cards: of more, a ring passes their slots
    nvlink = nvlink and (gpus <= 2 or not any(each.nvlink_bridge for each in types.values()))

    def link_rate(name: str) -> float:
        return types[name].nvlink_bytes_per_second / 1e9 if nvlink else types[name].pcie_gbps / 8

    slowest = min(types, key=link_rate)
    slot, rate = types[slowest].pcie_gbps / 8, link_rate(slowest)
    generation = types[slowest].nvlink_generation if nvlink else _slot_generation(slot)
    share = min(gpus / sum(device.count for device in node.devices), 1.0)
    nics = max(1, ceil(node.nics * share))
    stated = (node.intra_bandwidth_gbps or 0.0) / 8
    return _Ports(
        gpu=slowest,
        nvlink=nvlink,
        generation=generation,
        # more than four GPUs of three generations and later meet only at an NVSwitch
        switched=nvlink and (node.nvswitch or (generation > 2 and gpus > 4)),
        link_gbytes_per_second=stated if nvlink and 0 < stated < CUT_LINK_SHARE * rate else rate,
        slot_gbytes_per_second=slot,
        nics=nics,
        nic_gbytes_per_second=(
            node.nic_gbps or node.bandwidth_gbps / node.nics / payload_share(transport)
        )
        / 8,
    )


def _slot_generation(gbytes_per_second: float) -> int:
    gbps = gbytes_per_second * 8
    return 3 if gbps <= PCIE_3 else 4 if gbps <= PCIE_4 else 5


def _transport(cluster: Cluster, assumed: list[str]) -> str:
    if cluster.transport:
        return cluster.transport
    slow = any(node.latency_us >= RDMA_LATENCY_US for node in cluster.nodes if node.ranks)
    assumed.append(
        f"cluster {cluster.name!r} states no transport; its latencies "
        + (
            f"of {RDMA_LATENCY_US:g} us and more are taken for TCP"
            if slow
            else f"below {RDMA_LATENCY_US:g} us are taken for InfiniBand"
        )
    )
    return "tcp" if slow else "infiniband"


def _version(text: str) -> tuple[int, int]:
    parts = [int(part) for part in text.split(".")[:2] if part.isdigit()]
    return (parts[0], parts[1]) if len(parts) == 2 else (0, 0)
