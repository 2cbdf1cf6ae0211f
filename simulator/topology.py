"""What NCCL sees of a team of ranks: GPUs and their links, NICs, and the network between nodes.

NCCL searches this graph for rings and trees when a communicator is made. A cluster file states it
briefly; what a file leaves out follows from the types of its devices, and `Topology.assumed` says
what was taken for it.
"""

from dataclasses import dataclass
from math import ceil

from autosync.cluster import Cluster, Node
from autosync.devices import DEVICE_TYPES, PCIE_3, PCIE_4

NVLINK_GENERATIONS = ((150.0, 2), (300.0, 3), (450.0, 4), (float("inf"), 5))
"""GB/s in each direction of all NVLinks of a GPU (data sheets), and up to which generation."""

WITHOUT_PEER_TO_PEER = frozenset({"rtx-2080-ti", "rtx-3090", "rtx-4090"})
"""GeForce cards whose driver offers no peer-to-peer transfers over PCIe: bytes pass host memory."""

CUT_LINK_SHARE = 0.7
"""A node that states less than this share of its GPUs' NVLinks has links that are cut (an H800 has
200 of 450 GB/s); above it, what an all-reduce reaches is the constants' matter."""

RDMA_LATENCY_US = 20.0
"""Where no transport is stated: nodes of a lower latency are taken to use InfiniBand (1 to 5 us),
others TCP (tens)."""

PAYLOAD_SHARE = {"tcp": 0.956}
RDMA_PAYLOAD_SHARE = 0.97
"""Payload that cluster files state of a port, over its nominal rate (TCP: at an MTU of 1500)."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A team of `nodes` x `gpus_per_node` ranks.

    gpu: device type. generation: of its NVLinks or its PCIe slot. nvlink: whether GPUs of a node
        reach each other over NVLink. switched: through NVSwitch. pairs: over bridges that join
        pairs only. peer_to_peer: without passing host memory.
    link_gbytes_per_second: of a GPU to the others of its node, one direction, data sheet.
    slot_gbytes_per_second: of a GPU's PCIe slot, one direction.
    stated_gbytes_per_second: what the file says of the links inside a node; 0: nothing.
    nics, nic_gbytes_per_second: those that the team uses in a node, and the nominal rate of one.
    transport: what carries messages between nodes; "" for a single node.
    rails: each GPU has a NIC near it, and equal GPUs of all nodes share a leaf switch.
    oversubscription: of the spine, 1 for none.
    connection_gbytes_per_second: of one TCP connection, as the file states it; 0: not stated.
    nccl_version: major and minor; (0, 0): not stated.
    assumed: sentences of what the file leaves out and was taken for it.
    """

    nodes: int
    gpus_per_node: int
    gpu: str
    nvlink: bool
    generation: int
    switched: bool
    pairs: bool
    peer_to_peer: bool
    link_gbytes_per_second: float
    slot_gbytes_per_second: float
    stated_gbytes_per_second: float = 0.0
    nics: int = 1
    nic_gbytes_per_second: float = 0.0
    transport: str = ""
    rails: bool = False
    oversubscription: float = 1.0
    connection_gbytes_per_second: float = 0.0
    nccl_version: tuple[int, int] = (0, 0)
    assumed: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def gpu_link(self) -> str:
        """The class of the links inside a node: nvlink4, pcie4, pcie3-without-p2p, pcie4-pairs."""
        if self.nvlink and not (self.pairs and self.gpus_per_node > 2):
            return f"nvlink{self.generation}"
        suffix = "-pairs" if self.nvlink else "" if self.peer_to_peer else "-without-p2p"
        return f"pcie{self.slot_generation}{suffix}"

    @property
    def slot_generation(self) -> int:
        return _slot_generation(self.slot_gbytes_per_second)

    @property
    def node_gbytes_per_second(self) -> float:
        """Nominal, of all NICs of a node that the team uses, below an oversubscribed spine."""
        return self.nics * self.nic_gbytes_per_second / self.oversubscription


def topology_of(cluster: Cluster) -> Topology:
    """What NCCL sees of all ranks of a cluster."""
    return topology_of_team(cluster, tuple(range(cluster.world_size)))


def topology_of_team(cluster: Cluster, team: tuple[int, ...]) -> Topology:
    """What NCCL sees of some ranks. Dedicated servers of the team are left out.

    Where nodes differ, the slowest links, NICs and the fullest node count.
    """
    node_of = cluster.node_of_server()
    members = [int(node_of[rank]) for rank in team if rank < cluster.world_size]
    held = {place: members.count(place) for place in sorted(set(members))}
    nodes = [cluster.nodes[place] for place in held]
    if not nodes:  # servers by themselves
        nodes, held = [cluster.nodes[0]], {0: 1}
    gpus = max(held.values())
    links = [_links_of(node, count) for node, count in zip(nodes, held.values(), strict=True)]
    slowest = min(links, key=lambda each: each.gbytes_per_second)
    stated = [node.intra_bandwidth_gbps or 0.0 for node in nodes]
    assumed: list[str] = []
    transport = _transport(cluster, assumed) if len(nodes) > 1 else ""
    nics, nic_rate = min(
        (
            _nics_of(node, count, transport)
            for node, count in zip(nodes, held.values(), strict=True)
        ),
        key=lambda each: each[0] * each[1],
    )
    return Topology(
        nodes=len(nodes),
        gpus_per_node=gpus,
        gpu=slowest.gpu,
        nvlink=slowest.nvlink,
        generation=slowest.generation,
        switched=slowest.switched,
        pairs=slowest.pairs,
        peer_to_peer=slowest.gpu not in WITHOUT_PEER_TO_PEER or slowest.nvlink,
        link_gbytes_per_second=slowest.gbytes_per_second,
        slot_gbytes_per_second=slowest.slot_gbytes_per_second,
        stated_gbytes_per_second=min(stated) / 8,
        nics=nics,
        nic_gbytes_per_second=nic_rate if len(nodes) > 1 else 0.0,
        transport=transport,
        rails=all(node.rails for node in nodes),
        oversubscription=cluster.oversubscription if len(nodes) > 1 else 1.0,
        connection_gbytes_per_second=cluster.connection_gbps / 8,
        nccl_version=_version(cluster.nccl_version),
        assumed=tuple(assumed),
    )


@dataclass(frozen=True, slots=True)
class _NodeLinks:
    gpu: str
    nvlink: bool
    generation: int
    switched: bool
    pairs: bool
    gbytes_per_second: float
    slot_gbytes_per_second: float


def _links_of(node: Node, gpus: int) -> _NodeLinks:
    """Of the slowest device of a node, `gpus` of which are in the team."""
    found = []
    for held in node.devices:
        device = DEVICE_TYPES[held.type]
        rate = device.nvlinks * device.nvlink_gbps / 8
        default = bool(device.nvlinks) and not device.nvlink_bridge
        nvlink = bool(rate) and (node.gpu_link == "nvlink" or (default and node.gpu_link == ""))
        slot = device.pcie_gbps / 8
        if nvlink:
            generation = next(number for most, number in NVLINK_GENERATIONS if rate <= most)
            # eight GPUs with three generations and later meet nowhere but at an NVSwitch
            switched = node.nvswitch or (generation > 2 and gpus > 4 and not device.nvlink_bridge)
            rate = _uncut(rate, node)
        else:
            generation, switched, rate = _slot_generation(slot), False, slot
        pairs = device.nvlink_bridge and nvlink
        found.append(_NodeLinks(held.type, nvlink, generation, switched, pairs, rate, slot))
    return min(found, key=lambda each: each.gbytes_per_second)


def _uncut(rate: float, node: Node) -> float:
    stated = (node.intra_bandwidth_gbps or 0.0) / 8
    return stated if 0 < stated < CUT_LINK_SHARE * rate else rate


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


def _nics_of(node: Node, gpus: int, transport: str) -> tuple[int, float]:
    """How many NICs of a node `gpus` of its GPUs use, and GB/s of one, nominal.

    GPUs send through the NICs near them: half of a node's GPUs use half of its NICs.
    """
    held = max(sum(device.count for device in node.devices), 1)
    share = PAYLOAD_SHARE.get(transport, RDMA_PAYLOAD_SHARE)
    rate = node.nic_gbps or node.bandwidth_gbps / node.nics / share
    return max(1, ceil(node.nics * min(gpus / held, 1.0))), rate / 8


def _version(text: str) -> tuple[int, int]:
    parts = [int(part) for part in text.split(".")[:2] if part.isdigit()]
    return (parts[0], parts[1]) if len(parts) == 2 else (0, 0)
