"""Payload rates of links of which only the nominal rate is known: estimates from data sheets."""

from collections.abc import Sequence
from typing import Literal

from autosync.cluster.devices import DEVICE_TYPES

StatedTransport = Literal[
    "tcp", "roce", "infiniband", "efa", "gpudirect-tcpx", "gpudirect-tcpxo", "slingshot"
]
"""What carries messages between hosts."""

TCP_SHARE = 0.956
"""Of a port's rate, at an MTU of 1500."""
RDMA_SHARE = 0.97
"""Of a port's rate, with headers of InfiniBand or RoCE at an MTU of 4096 and acknowledgements."""
RDMA_TRANSPORTS = frozenset({"infiniband", "roce", "efa", "slingshot"})

NVLINK_SHARE = 0.78
"""Of NVLink's rate that an all-reduce's payload reaches: 235 of 300 GB/s on a DGX A100
(nccl-tests, bus bandwidth)."""
PCIE_SHARE = 0.42
"""Of a slot's rate, without peer-to-peer: 52.9 of 126 Gbit/s, fitted to nodes of four RTX 2080 Ti
(docs/gpu-clusters.md)."""


def payload_share(transport: str) -> float:
    """Of a port's rate on the wire. "": of TCP, which carries less."""
    return RDMA_SHARE if transport in RDMA_TRANSPORTS else TCP_SHARE


def nic_payload_gbps(nics: int, nic_gbps: float, transport: str) -> float:
    """Payload rate of so many NICs together, in Gbit/s."""
    return round(nics * nic_gbps * payload_share(transport), 9)


def gpu_payload_gbps(device_types: Sequence[str], link: str) -> float:
    """Payload rate between GPUs that all their NVLinks or their slots join, in Gbit/s: that of the
    slowest type. link: "nvlink" or "pcie"."""
    kinds = [DEVICE_TYPES[each] for each in device_types]
    if link == "nvlink":
        return round(min(kind.nvlinks * kind.nvlink_gbps for kind in kinds) * NVLINK_SHARE, 1)
    return round(min(kind.pcie_gbps for kind in kinds) * PCIE_SHARE, 1)
