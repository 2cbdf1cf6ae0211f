"""Hosts of a cluster, their devices, and links of their own between two of them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict

from autosync.devices import DEVICE_TYPES
from autosync.documents import STRICT, UNLESS_ONE, UNLESS_ZERO


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


@dataclass(frozen=True, slots=True)
class Node:
    """A host.

    bandwidth_gbps: payload rate of its NIC in each direction, in Gbit/s. TCP carries at most
        95.6 % of the wire rate at an MTU of 1500, so a 1 Gbit/s port is 0.956.
    intra_bandwidth_gbps: payload rate between its own devices, in Gbit/s.
    nics: how many NICs (rails) make up bandwidth_gbps. Predictions take them for one, as where a
        collective's channels use all of them.
    usd_per_hour: its public price on demand, on the day that the cluster states; 0: not known.
    """

    address: str
    devices: tuple[Device, ...]
    bandwidth_gbps: float
    intra_bandwidth_gbps: float | None = None
    latency_us: float = 50.0
    server_only: bool = False
    nics: Annotated[int, UNLESS_ONE] = 1
    usd_per_hour: Annotated[float, UNLESS_ZERO] = 0.0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @property
    def ranks(self) -> int:
        return 0 if self.server_only else sum(device.count for device in self.devices)


@dataclass(frozen=True, slots=True)
class Link:
    """A bandwidth and latency of its own for one pair of nodes, in both directions."""

    nodes: tuple[str, str]
    bandwidth_gbps: float
    latency_us: float | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
