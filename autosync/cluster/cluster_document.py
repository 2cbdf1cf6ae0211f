"""The cluster D as a document: its hosts, what their messages cost, and the rates between them."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from autosync.cluster.cluster_checks import (
    OPTIONAL_NUMBERS,
    check_costs,
    check_curves,
    check_fabric,
    check_links,
    check_nodes,
    check_numbers,
    check_prices,
)
from autosync.cluster.collective_curve import CollectiveCurve
from autosync.cluster.devices import DEVICE_TYPES
from autosync.cluster.link_rates import StatedTransport
from autosync.documents import (
    STRICT,
    UNLESS_EMPTY,
    UNLESS_FALSE,
    UNLESS_NO_ITEMS,
    UNLESS_NONE,
    UNLESS_ONE,
    UNLESS_ZERO,
    content_hash,
)
from autosync.errors import InvalidInput
from autosync.nccl_knobs import NcclKnobs


@dataclass(frozen=True, slots=True)
class Device:
    """`count` devices of one type on a node; each holds one replica (one rank).

    memory_gb: of each, in 10^9 bytes; None: as its type's data sheet says.
    slowdown: how many times slower than its type it computes (1 is nominal).
    """

    type: str
    count: int = 1
    memory_gb: float | None = None
    slowdown: float = 1.0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @property
    def memory_bytes(self) -> float:
        return (self.memory_gb or DEVICE_TYPES[self.type].memory_gb) * 1e9


GpuLink = Literal["", "nvlink", "pcie"]


@dataclass(frozen=True, slots=True)
class Node:
    """A host.

    bandwidth_gbps: payload rate of its NICs together in each direction, in Gbit/s. TCP carries at
        most 95.6 % of the wire rate at an MTU of 1500, so a 1 Gbit/s port is 0.956.
    intra_bandwidth_gbps: payload rate between its own devices, in Gbit/s.
    nics: how many NICs make up bandwidth_gbps.
    usd_per_hour: its public price on demand, on the day that the cluster states; 0: not known.
    nvswitch: an NVSwitch joins its GPUs, so that each reaches any other at the rate of all its
        NVLinks.
    nic_gbps: rate of one NIC on the wire, in Gbit/s, as it is sold; 0: not known. A cluster file
        that states it may leave out bandwidth_gbps.
    rails: each GPU has a NIC near it, and NICs of the same position in their nodes share a leaf
        switch; else all NICs of a node hang on one leaf.
    gpu_link: what joins its GPUs; "": what their type has (see `gpu_link_kind`).
    """

    address: str
    devices: tuple[Device, ...]
    bandwidth_gbps: float
    intra_bandwidth_gbps: float | None = None
    latency_us: float = 50.0
    server_only: bool = False
    nics: Annotated[int, UNLESS_ONE] = 1
    usd_per_hour: Annotated[float, UNLESS_ZERO] = 0.0
    nvswitch: Annotated[bool, UNLESS_FALSE] = False
    nic_gbps: Annotated[float, UNLESS_ZERO] = 0.0
    rails: Annotated[bool, UNLESS_FALSE] = False
    gpu_link: Annotated[GpuLink, UNLESS_EMPTY] = ""
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @property
    def ranks(self) -> int:
        return 0 if self.server_only else sum(device.count for device in self.devices)

    @property
    def gpu_link_kind(self) -> Literal["nvlink", "pcie"]:
        """`gpu_link` as stated; else NVLink where all its device types have NVLinks without a
        bridge, which a data sheet cannot tell of."""
        if self.gpu_link:
            return self.gpu_link
        kinds = [DEVICE_TYPES[device.type] for device in self.devices]
        linked = bool(kinds) and all(kind.nvlinks and not kind.nvlink_bridge for kind in kinds)
        return "nvlink" if linked or self.nvswitch else "pcie"


@dataclass(frozen=True, slots=True)
class Link:
    """A bandwidth and latency of its own for one pair of nodes, in both directions."""

    nodes: tuple[str, str]
    bandwidth_gbps: float
    latency_us: float | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


Backend = Literal["gloo", "nccl"]
Transport = Literal["", StatedTransport]
MessageKind = Literal[
    "all_reduce", "reduce", "broadcast", "all_gather", "all_to_all", "send_recv", "engine"
]


@dataclass(frozen=True, slots=True)
class MessageCost:
    """What one message of a kind costs besides its bytes on the link, fitted by the probe.

    seconds = startup_seconds + startup_seconds_per_worker * workers
              + seconds_per_byte * wire bytes (an engine's own copies).
    host_seconds, host_seconds_per_byte: how long a message occupies the hosts' processors, during
        which they process no other message of any kind. Where ranks share few cores, or an
        interpreter lock, this dominates the cost of many small messages.
    residual: relative error of the fit (0.05 is 5 %); None where the cost is assumed.
    """

    kind: MessageKind
    startup_seconds: float
    startup_seconds_per_worker: float = 0.0
    seconds_per_byte: float = 0.0
    host_seconds: float = 0.0
    host_seconds_per_byte: float = 0.0
    residual: float | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


def _assumed(backend: Backend) -> dict[MessageKind, MessageCost]:
    # gloo: a 1 KB all-reduce of 4 ranks takes 1.1 to 1.5 ms on two cores under batch scheduling
    # (measured on the testbed); NCCL: tens of microseconds, the order nccl-tests reports.
    base, per_worker = (4e-4, 2e-4) if backend == "gloo" else (1.5e-5, 2e-6)
    kinds: tuple[MessageKind, ...] = (
        "all_reduce",
        "reduce",
        "broadcast",
        "all_gather",
        "all_to_all",
        "send_recv",
    )
    costs = {kind: MessageCost(kind, base, per_worker) for kind in kinds}
    costs["engine"] = MessageCost("engine", 0.0)
    return costs


ASSUMED_COSTS: dict[Backend, dict[MessageKind, MessageCost]] = {
    "gloo": _assumed("gloo"),
    "nccl": _assumed("nccl"),
}


MOST_SERVERS = 32_767
"""Ranks and dedicated server hosts: populations and plans number owners in signed 16 bits."""
GLOO_SLOWDOWN = 0.1
"""With it the timeline ranks the picks of the twelve domains of datasets/runtimes best: Kendall's
tau 0.54 on average, 0.47 without, 0.50 to 0.54 from 0.05 to 0.4. Any eleven of them would choose it
for the twelfth (`python -m benchmarks.assumed_slowdown`)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """D. Ranks count devices node by node, in the order of the file.

    costs: fitted communication costs; kinds that are absent are assumed (`autosync probe`
        measures them).
    overlap_slowdown: share by which compute takes longer while messages are on the wire (0.05: a
        second becomes 1.05). NCCL's kernels take multiprocessors and memory bandwidth from it,
        gloo's threads take cores. Absent where it is not known: see `compute_slowdown`.
    transfer_slowdown: share by which what passes a device's port takes longer while devices run
        backward (1: twice as long), since collectives' kernels wait for multiprocessors and memory.
        Messages that a slower link holds back anyway are not delayed. 0: nothing, or not known.
    connection_gbps: payload rate that one connection between two hosts reaches, in Gbit/s; what
        several connections carry adds up to the NICs' rates. 0: a connection fills its NIC, or not
        known. On TCP a connection is the work of one core, and slower than a fast port.
    link_seconds_per_send: how long each send within a message holds its links besides the bytes
        of the message: headers, acknowledgements, what sender and receiver tell each other. An
        all-reduce of n ranks sends 2 (n - 1) times over each of its links. 0: none, or not known.
    priced_on: the day of the nodes' prices, YYYY-MM-DD; "" without prices.
    transport: what carries messages between hosts; "": not stated.
    oversubscription: of the switches between hosts: what the hosts of one leaf switch can send
        together, over what its links to the spine carry. 1: all of it at once.
    hosts_per_leaf: number of hosts that a leaf switch has ports for; with rails, that a pod has.
        Leaves are filled in the order of the nodes. 0: not stated; `autosync.simulator.fabric`
        says what is then assumed.
    nccl_version: the version of NCCL that the jobs run, "2.21.5" or "2.21"; "": not stated.
    curves: measured collectives of the backend; they count before any constants.
    nccl: what the jobs tell NCCL. `curves` were measured without.
    """

    name: str
    nodes: tuple[Node, ...]
    backend: Backend = "gloo"
    links: tuple[Link, ...] = ()
    costs: tuple[MessageCost, ...] = ()
    overlap_slowdown: Annotated[float | None, UNLESS_NONE] = None
    transfer_slowdown: Annotated[float, UNLESS_ZERO] = 0.0
    connection_gbps: Annotated[float, UNLESS_ZERO] = 0.0
    link_seconds_per_send: Annotated[float, UNLESS_ZERO] = 0.0
    description: str = ""
    priced_on: Annotated[str, UNLESS_EMPTY] = ""
    transport: Annotated[Transport, UNLESS_EMPTY] = ""
    oversubscription: Annotated[float, UNLESS_ONE] = 1.0
    hosts_per_leaf: Annotated[int, UNLESS_ZERO] = 0
    nccl_version: Annotated[str, UNLESS_EMPTY] = ""
    curves: Annotated[tuple[CollectiveCurve, ...], UNLESS_NO_ITEMS] = ()
    nccl: Annotated[NcclKnobs | None, UNLESS_NONE] = None
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        known = check_nodes(self.name, self.nodes)
        check_links(self.name, self.links, known)
        check_costs(self.name, self.costs)
        check_numbers(self.name, {field: getattr(self, field) for field in OPTIONAL_NUMBERS})
        check_prices(self.name, self.nodes, self.priced_on)
        check_fabric(self.name, self.oversubscription, self.hosts_per_leaf, self.nccl_version)
        check_curves(self.name, self.curves)
        if self.world_size < 2:
            raise InvalidInput(
                f"cluster {self.name!r} has {self.world_size} device for replicas: with one device "
                "there is nothing to synchronize.",
                thing="nodes",
                value=self.world_size,
                remedy="Name at least two devices.",
            )
        if self.servers > MOST_SERVERS:
            raise InvalidInput(
                f"cluster {self.name!r} has {self.servers} ranks and dedicated server "
                f"hosts; at most {MOST_SERVERS} can be told apart.",
                thing="nodes",
                value=self.servers,
                remedy="Name fewer devices.",
            )

    def on_backend(self, backend: Backend) -> "Cluster":
        """The cluster with messages that another backend moves: what was measured of this one's
        does not count."""
        if backend == self.backend:
            return self
        return replace(self.without_measured_costs(), backend=backend)

    def without_measured_costs(self) -> "Cluster":
        """The cluster as it was stated: costs that a probe or trials measured are unknown."""
        return replace(
            self,
            costs=(),
            overlap_slowdown=None,
            transfer_slowdown=0.0,
            link_seconds_per_send=0.0,
            curves=(),
        )

    @property
    def compute_slowdown(self) -> float:
        """`overlap_slowdown` as stated or measured; else GLOO_SLOWDOWN on gloo and 0 on another
        backend, of which none was measured."""
        if self.overlap_slowdown is not None:
            return self.overlap_slowdown
        return GLOO_SLOWDOWN if self.backend == "gloo" else 0.0

    @property
    def id(self) -> str:
        return content_hash(self)

    @property
    def world_size(self) -> int:
        return sum(node.ranks for node in self.nodes)

    @property
    def usd_per_hour(self) -> float | None:
        """Of all nodes; None where the price of one is not known."""
        prices = [node.usd_per_hour for node in self.nodes]
        return sum(prices) if all(prices) else None

    @property
    def fastest_device_type(self) -> str:
        """Of those that hold replicas: the one that a profile is stated for."""
        types = {device.type for device in self.device_of_rank()}
        return max(types, key=lambda name: (DEVICE_TYPES[name].peak_flops_per_second, name))

    @property
    def servers(self) -> int:
        """Servers that can own a shard: every rank, then every dedicated server host."""
        return self.world_size + sum(node.server_only for node in self.nodes)

    def node_of_server(self) -> NDArray[np.int16]:
        """A `(servers,)` array: the node of each rank, then of each dedicated server host."""
        workers = [i for i, node in enumerate(self.nodes) for _ in range(node.ranks)]
        dedicated = [i for i, node in enumerate(self.nodes) if node.server_only]
        return np.array(workers + dedicated, dtype=np.int16)

    def device_of_rank(self) -> tuple[Device, ...]:
        return tuple(
            device
            for node in self.nodes
            if not node.server_only
            for device in node.devices
            for _ in range(device.count)
        )

    def bandwidth_bytes_per_second(self) -> NDArray[np.float64]:
        """A `(nodes, nodes)` array of payload rates; the diagonal is intra-node.

        Between nodes the slower NIC counts, unless a link says otherwise. A node of one device
        has no intra-node traffic: infinity.
        """
        nic = np.array([node.bandwidth_gbps for node in self.nodes])
        rates = np.minimum.outer(nic, nic)
        inside = [node.intra_bandwidth_gbps or np.inf for node in self.nodes]
        np.fill_diagonal(rates, inside)
        for link, i, j in self._links():
            rates[i, j] = rates[j, i] = link.bandwidth_gbps
        result: NDArray[np.float64] = rates * 1e9 / 8
        return result

    def nic_bytes_per_second(self) -> NDArray[np.float64]:
        """A `(nodes,)` array: each NIC's payload rate, one direction."""
        return np.array([node.bandwidth_gbps for node in self.nodes]) * 1e9 / 8

    def latency_seconds(self) -> NDArray[np.float64]:
        """A `(nodes, nodes)` array: one way; the sum of both ends' halves unless a link says."""
        half = np.array([node.latency_us for node in self.nodes]) / 2
        latency = np.add.outer(half, half)
        np.fill_diagonal(latency, 0.0)
        for link, i, j in self._links():
            if link.latency_us is not None:
                latency[i, j] = latency[j, i] = link.latency_us
        return latency * 1e-6

    def _links(self) -> list[tuple[Link, int, int]]:
        index = {node.address: i for i, node in enumerate(self.nodes)}
        return [(link, index[link.nodes[0]], index[link.nodes[1]]) for link in self.links]

    def cost(self, kind: MessageKind) -> MessageCost:
        """The fitted cost of a message kind, or the assumed one (its residual is None)."""
        for cost in self.costs:
            if cost.kind == kind:
                return cost
        return ASSUMED_COSTS[self.backend][kind]
