"""Startup and rate of NCCL's algorithms and protocols on a topology.

The form is that of NCCL's own tuner (src/graph/tuning.cc): a launch, the steps that follow one
another inside nodes and between them, and the bytes over the narrower of a GPU's links and a node's
NICs. The constants are those of the topology's classes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log2
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from autosync.cluster.devices import DEVICE_TYPES
from autosync.nccl_knobs import NcclAlgorithm, NcclProtocol
from autosync.simulator.backends.nccl.constants import Constant, constant
from autosync.simulator.backends.nccl.spine_bytes import (
    pat_spine_bytes,
    ring_spine_bytes,
    summed_spine_bytes,
    tree_spine_bytes,
)
from autosync.simulator.topology import Topology

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "send_recv",
    "all_to_all",
)
ALGORITHMS = (*get_args(NcclAlgorithm), "CollNet")
PROTOCOLS = get_args(NcclProtocol)

CHANNELS = {"nvlink2": 12, "nvlink3": 24, "nvlink4": 24, "nvlink5": 32}
PCIE_CHANNELS = 4
NVLS_LEAST_GPUS = 5
MOST_GPUS_OF_A_BOARD = 16
"""More are joined by the switches of a rack."""
TREES_GAIN_SINCE = (2, 12)
"""NCCL's version from which on trees of two nodes exceed a ring's rate."""
GENERATIONS_SINCE = ((0, "volta"), (2020, "ampere"), (2022, "hopper"), (2024, "blackwell"))
"""By the year in which a GPU was introduced."""
NVLS_TUNER_SHARE = {4: 0.85, 5: 0.74}
"""By which NCCL's tuner takes NVLS to be slower than the links, times 5/6 (tuning.cc): a ring wins
where it moves fewer bytes."""

FILL_ENDS_SECONDS = 3e-4
"""Chunks have a largest size: filling a pipeline takes no more time once all bytes take longer."""
RESOURCES = ("GPU links", "NICs", "spine")
"""That a message's bytes pass."""
F64 = NDArray[np.float64]
Lookup = Callable[[str, str], Constant]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An algorithm and protocol for one operation.

    seconds = startup + transfer + 2 sqrt(fill x transfer), transfer = bytes x seconds_per_byte: a
    pipeline of steps whose chunks are as large as is best, so that chunks fill it in the more time
    the more bytes there are.
    gpu_bytes, nic_bytes: through each GPU's port and each NIC, one direction, per message byte.
    spine_bytes: through a leaf's links to the spine, of all its hosts, per message byte. per_byte:
    seconds of each of RESOURCES, of which the slowest counts.
    startup_width, rate_width: one standard deviation of their logarithms.
    """

    algorithm: str
    protocol: str
    startup_seconds: float
    seconds_per_byte: float
    fill_seconds: float
    gpu_bytes: float
    nic_bytes: float
    channels: int
    startup_width: float
    rate_width: float
    spine_bytes: float
    per_byte: tuple[float, float, float]

    def seconds(self, size_bytes: F64) -> F64:
        """`(n,)` of messages of `(n,)` bytes."""
        transfer = np.multiply.outer(self.seconds_per_byte, size_bytes)
        filled = transfer / (1.0 + transfer / FILL_ENDS_SECONDS)
        fill = 2.0 * np.sqrt(np.expand_dims(self.fill_seconds, -1) * filled)
        result: F64 = np.expand_dims(self.startup_seconds, -1) + transfer + fill
        return result

    def limited_to(self, channels: int, topology: Topology) -> "Candidate":
        """With so many channels at most; 0: no limit. Each carries its share of the rate of GPU
        links, and uses one NIC or connection."""
        if not 0 < channels < self.channels:
            return self
        inside, outside, spine = self.per_byte
        inside *= self.channels / channels
        ways = connections(topology) if topology.transport == "tcp" else topology.nics
        outside *= max(1.0, min(ways, self.channels) / channels)
        return replace(self, seconds_per_byte=max(inside, outside, spine), channels=channels)

    def binding_at(self, size_bytes: float) -> str:
        """What a message of so many bytes takes most of its time for: its startup, one of
        RESOURCES, or its channels, where fewer than NCCL's own are allowed."""
        if float(self.seconds(np.array([size_bytes]))[0]) < 2 * self.startup_seconds:
            return "startup"
        if self.seconds_per_byte > max(self.per_byte):
            return "channels"
        return RESOURCES[int(np.argmax(self.per_byte))]


def candidates(
    topology: Topology, operation: str, lookup: Lookup = constant
) -> tuple[Candidate, ...]:
    """What NCCL can run for an operation on a topology."""
    return tuple(_candidates(_System(topology, lookup), operation))


def generation(topology: Topology) -> str:
    """The class of the GPUs, by what their launches take."""
    year = DEVICE_TYPES[topology.gpu].year
    return [name for first, name in GENERATIONS_SINCE if first <= year][-1]


class _System:
    """A topology with the constants of its classes, numbers or arrays of as many trials."""

    def __init__(self, topology: Topology, lookup: Lookup) -> None:
        self.topology, self.lookup = topology, lookup
        self.link, self.gpus = topology.gpu_link, generation(topology)

    def of_link(self, quantity: str) -> float:
        return self.lookup(self.link, quantity).value

    def of_transport(self, quantity: str) -> float:
        """Of the network between nodes; 1 within a single one, where nothing counts by it."""
        return self.lookup(self.topology.network, quantity).value if self.crosses else 1.0

    @property
    def crosses(self) -> bool:
        return self.topology.nodes > 1

    @property
    def link_rate(self) -> float:
        """Bytes a second that an all-reduce's ring gets of a GPU's links in a node."""
        topology = self.topology
        rate = topology.link_gbytes_per_second * self.of_link("share")
        if not topology.peer_to_peer:
            host = self.of_link("host_gbytes_per_second")
            rate = _least(rate, host / topology.gpus_per_node)
        return rate * 1e9

    @property
    def spine_rate(self) -> float:
        """Bytes a second from a leaf to the spine that the team's bytes can take."""
        return self.topology.uplink_gbytes_per_second * self.of_transport("share") * 1e9

    @property
    def node_rate(self) -> float:
        """Bytes a second through the NICs of a node that the team uses; infinite for one node."""
        topology = self.topology
        if not self.crosses:
            return float("inf")
        rate = topology.node_gbytes_per_second * self.of_transport("share")
        if topology.transport == "tcp":
            one = topology.connection_gbytes_per_second
            carried = one or self.of_transport("connection_gbytes_per_second")
            sockets = connections(topology) * topology.nccl.sockets
            rate = _least(rate, sockets * carried)
        through = topology.slot_gbytes_per_second
        if topology.staged:
            through = _least(through, self.of_transport("proxy_gbytes_per_second"))
        return _least(rate, topology.gpus_per_node * through) * 1e9

    def candidate(self, algorithm: str, protocol: str, way: "_Way", hop: str = "") -> Candidate:
        """An algorithm and protocol that takes these steps and moves these bytes. hop: whose steps
        inside a node those are, if not the protocol's."""
        name, topology = protocol.lower(), self.topology
        inside = way.inside_steps * self.of_link(f"hop_{hop or name}_seconds")
        outside = way.outside_steps * self.of_transport(f"hop_{name}_seconds")
        launch = self.lookup(self.gpus, f"launch_{name}_seconds").value
        link_share, node_share = way.link_share, way.node_share
        if protocol != "Simple":
            link_share *= self.of_link(f"{name}_share")
            node_share *= self.of_transport(f"{name}_share")
        inside_per_byte = way.gpu_bytes / (self.link_rate * link_share)
        outside_per_byte = way.node_bytes / (self.node_rate * node_share)
        spine_per_byte = way.spine_bytes / (self.spine_rate * node_share)
        fill = inside * self.of_link(f"fill_{hop or name}")
        fill += outside * self.of_transport(f"fill_{name}")
        return Candidate(
            algorithm=algorithm,
            protocol=protocol,
            startup_seconds=launch + inside + outside,
            seconds_per_byte=_most(inside_per_byte, _most(outside_per_byte, spine_per_byte)),
            fill_seconds=fill,
            gpu_bytes=way.gpu_bytes,
            nic_bytes=way.node_bytes / topology.nics,
            channels=CHANNELS.get(self.link, PCIE_CHANNELS),
            startup_width=max(self._widths(f"hop_{hop or name}_seconds", f"hop_{name}_seconds")),
            rate_width=max(self._widths("share", "share")),
            spine_bytes=way.spine_bytes,
            per_byte=(inside_per_byte, outside_per_byte, spine_per_byte),
        )

    def _widths(self, inside: str, outside: str) -> Iterator[float]:
        """Of a quantity of the links and of the network."""
        yield self.lookup(self.link, inside).width
        if self.crosses:
            yield self.lookup(self.topology.network, outside).width


def _least(one: float, other: float) -> float:
    """Of numbers, or of each of many at once: a fit tries many constants."""
    result: float = np.minimum(one, other)
    return result


def _most(one: float, other: float) -> float:
    """The same of the greater."""
    result: float = np.maximum(one, other)
    return result


@dataclass(frozen=True, slots=True)
class _Way:
    """How an algorithm runs: steps one after another inside nodes and between them, bytes through
    each GPU's port, out of each node and out of a leaf switch to the spine, per byte of the
    message, and the shares of the rates that it gets beside a ring."""

    inside_steps: float
    outside_steps: float
    gpu_bytes: float
    node_bytes: float
    spine_bytes: float = 0.0
    link_share: float = 1.0
    node_share: float = 1.0


def connections(topology: Topology) -> int:
    """TCP connections between two nodes that a collective's channels open: one for every 25 Gbit/s
    of a NIC, as NCCL makes more channels for faster ones."""
    return topology.nics * max(1, round(topology.nic_gbytes_per_second * 8 / 25))


def _candidates(system: _System, operation: str) -> Iterator[Candidate]:
    topology = system.topology
    if topology.ranks < 2:
        return
    protocols = protocols_of(topology)
    ring = _ring(topology, operation)
    yield from (system.candidate("Ring", protocol, ring) for protocol in protocols)
    if operation == "all_reduce":
        if topology.nodes > 1:
            tree = _tree(system)
            yield from (system.candidate("Tree", protocol, tree) for protocol in protocols)
            yield system.candidate("CollNet", "Simple", _collnet(topology))
        if has_nvls(topology):
            name = "NVLSTree" if system.crosses else "NVLS"
            yield system.candidate(name, "Simple", _nvls(system), hop="nvls")
    if operation in ("all_gather", "reduce_scatter") and has_pat(topology):
        yield system.candidate("PAT", "Simple", _pat(topology))


def protocols_of(topology: Topology) -> tuple[str, ...]:
    """LL128 relies on NVLink's order of writes, and on NICs that read GPUs' memory. GPUDirect-TCPX
    runs Simple only (Google's settings for it); over GPUDirect-TCPXO a sweep keeps LL's slope up to
    16 MiB."""
    if topology.network == "gpudirect-tcpx":
        return ("Simple",)
    in_order = topology.nvlink and not topology.staged and topology.network != "gpudirect-tcpxo"
    return PROTOCOLS if in_order else ("LL", "Simple")


def _ring(topology: Topology, operation: str) -> _Way:
    """Broadcast and reduce are chains along the ring; of an all-to-all, every byte for another node
    leaves by a NIC."""
    n, nodes, gpus = topology.ranks, topology.nodes, topology.gpus_per_node
    part = (n - 1) / n
    wire, steps, outside = {
        "all_reduce": (2 * part, 2 * (n - 1), 2 * (nodes - 1)),
        "all_gather": (part, n - 1, nodes - 1),
        "reduce_scatter": (part, n - 1, nodes - 1),
        "broadcast": (1.0, n - 1, nodes - 1),
        "reduce": (1.0, n - 1, nodes - 1),
        "send_recv": (1.0, 1, int(nodes > 1)),
        "all_to_all": (part, 1, int(nodes > 1)),
    }[operation]
    leaving = gpus * (n - gpus) / n if operation == "all_to_all" else wire
    leaving = leaving if nodes > 1 else 0.0
    to_spine = ring_spine_bytes(topology, operation, wire)
    return _Way(steps - outside, outside, wire, leaving, to_spine)


def _tree(system: _System) -> _Way:
    """Double binary trees over the nodes, chains inside them."""
    topology = system.topology
    gpus = topology.gpus_per_node
    return _Way(
        2 * (gpus - 1),
        2 * log2(topology.nodes),
        2.0 if gpus > 1 else 1.0,
        _crossing(topology),
        tree_spine_bytes(topology, _crossing(topology)),
        system.of_link("tree_share"),
        system.of_transport("tree_share"),
    )


def _crossing(topology: Topology) -> float:
    """Bytes out of a node by a double binary tree, per byte of the message. Two nodes exchange the
    message once; of more, an inner node passes on what its children send. Early versions' trees
    gain nothing of it: a sweep of 2.9 stays at a ring's rate."""
    if topology.nodes == 1:
        return 0.0
    early = (0, 0) < topology.nccl_version < TREES_GAIN_SINCE
    return 2.0 if topology.nodes > 2 or early else 1.0


def has_nvls(topology: Topology) -> bool:
    """NVLink SHARP: from NVLink 4 on, through NVSwitch, NCCL 2.17 on, for more than four GPUs, and
    where NCCL's tuner takes it to be faster than a ring."""
    if not topology.switched or topology.generation < 4:
        return False
    gpus = topology.gpus_per_node
    worthwhile = NVLS_TUNER_SHARE[topology.generation] * 5 / 6 > gpus / (2 * max(gpus - 1, 1))
    return gpus >= NVLS_LEAST_GPUS and worthwhile and _is_since(topology, 2, 17)


def has_pat(topology: Topology) -> bool:
    """PAT, from NCCL 2.23 on, for one GPU a node."""
    return topology.gpus_per_node == 1 and topology.nodes > 2 and _is_since(topology, 2, 23)


def _is_since(topology: Topology, major: int, minor: int) -> bool:
    """A version that is not stated is taken for a late one."""
    return topology.nccl_version == (0, 0) or topology.nccl_version >= (major, minor)


def _nvls(system: _System) -> _Way:
    """The switch adds up: each GPU sends the message and its part of the sum. Between nodes, trees
    of the GPUs of equal place."""
    topology = system.topology
    rack = topology.gpus_per_node > MOST_GPUS_OF_A_BOARD
    return _Way(
        1.0,
        2 * log2(topology.nodes),
        1.0 + 1.0 / topology.gpus_per_node,
        _crossing(topology),
        tree_spine_bytes(topology, _crossing(topology)),
        system.of_link("nvls_rack_share" if rack else "nvls_share") / system.of_link("share"),
        system.of_transport("tree_share"),
    )


def _collnet(topology: Topology) -> _Way:
    """The network's switches add up (SHARP): each node sends the message once. Runs only where it
    is forced, since a cluster file does not say whether switches can."""
    steps = 2 * (topology.gpus_per_node - 1)
    return _Way(steps, 2.0, 2.0, 1.0, summed_spine_bytes(topology))


def _pat(topology: Topology) -> _Way:
    """A logarithm of steps between nodes, and some work for every rank (tuning.cc)."""
    n = topology.ranks
    return _Way(0.1 * n, log2(n), 0.0, (n - 1) / n, pat_spine_bytes(topology))
