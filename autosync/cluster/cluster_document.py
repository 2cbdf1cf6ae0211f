"""The cluster D as a document: its hosts, what their messages cost, and the rates between them."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from autosync.cluster.cluster_checks import (
    OPTIONAL_NUMBERS,
    check_links,
    check_nodes,
    check_numbers,
    check_prices,
)
from autosync.cluster.message_cost import ASSUMED_COSTS, Backend, MessageCost, MessageKind
from autosync.cluster.nodes import Device, Link, Node
from autosync.devices import DEVICE_TYPES
from autosync.documents import STRICT, UNLESS_EMPTY, UNLESS_NONE, UNLESS_ZERO, content_hash
from autosync.errors import InvalidInput

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
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        known = check_nodes(self.name, self.nodes)
        check_links(self.name, self.links, known)
        check_numbers(self.name, {field: getattr(self, field) for field in OPTIONAL_NUMBERS})
        check_prices(self.name, self.nodes, self.priced_on)
        if self.world_size < 2:
            raise InvalidInput(
                f"cluster {self.name!r} has {self.world_size} device for replicas: with one device "
                "there is nothing to synchronize.",
                thing="nodes",
                value=self.world_size,
                remedy="Name at least two devices.",
            )

    def on_backend(self, backend: Backend) -> "Cluster":
        """The cluster with messages that another backend moves: what was measured of this one's
        does not count."""
        if backend == self.backend:
            return self
        return replace(
            self,
            backend=backend,
            costs=(),
            overlap_slowdown=None,
            transfer_slowdown=0.0,
            link_seconds_per_send=0.0,
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
