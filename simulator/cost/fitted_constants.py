"""Constants fitted to published measurements: what a cluster file cannot say of a testbed.

datasets/measurements holds them with the rows they were fitted to, by
benchmarks/published/published_fit.py. docs/gpu-clusters.md says what each is. `compute_time`
and `network` apply them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar, Literal

from pydantic import ConfigDict

from autosync.bundled_data import data_file, data_folder
from autosync.cluster import Cluster
from autosync.cluster.link_rates import TCP_SHARE
from autosync.documents import STRICT, from_json
from autosync.errors import InvalidInput

Transport = Literal["tcp", "rdma"]

PAYLOAD_SHARE: dict[Transport, float] = {"tcp": TCP_SHARE, "rdma": 0.98}
"""Of the wire rate that payload can take: TCP at an MTU of 1500 loses the rest to headers and
gaps between frames; InfiniBand at one of 4096 some 2 %."""

PHYSICAL_BOUNDS: dict[str, tuple[float, float, str]] = {
    "intra_bandwidth_gbps": (1.0, 126.0, "a PCIe 3.0 x16 slot carries 126 Gbit/s"),
    "hidden_share": (0.0, 0.5, "copies cannot run beside more than a part of compute"),
    "straggler_share": (0.0, 0.05, "steps of one device alone vary by less than 5 %"),
    "transfer_slowdown": (0.0, 4.0, "collectives keep at least a fifth of their rate"),
    "message_seconds": (1e-6, 1e-3, "a launch takes microseconds, a negotiation below 1 ms"),
    "hop_seconds": (1e-7, 5e-4, "one step of a ring takes less than 0.5 ms"),
    "engine_seconds": (0.0, 0.1, "an engine that takes longer a message hides nothing"),
}
"""Least and most that each constant can be, and why."""


@dataclass(frozen=True, slots=True)
class NetworkConstants:
    """One network between hosts.

    wire_gbps: of a host's port. payload_share: of it that gradients get.
    server_bandwidth_gbps: payload of a dedicated server host, sums and copies of its processors
        included; None where they keep up with the port.
    hop_seconds: of one step of a ring from host to host.
    """

    transport: Transport
    wire_gbps: float
    payload_share: float
    hop_seconds: float
    server_bandwidth_gbps: float | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class CalibratedRange:
    """What the measured rows cover, least and most.

    workers: devices. gigabytes_per_compute_second: gradients over one device's forward and
    backward seconds.
    error_share: nine in ten predictions of models, networks and numbers of workers that were left
    out of the fit were off by less.
    """

    workers: tuple[int, int]
    gigabytes_per_compute_second: tuple[float, float]
    error_share: float
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Constants:
    """Everything fitted on one kind of testbed.

    clusters: patterns of the names of the clusters that these constants belong to.
    device: the type of its devices.
    intra_bandwidth_gbps: payload between the devices of a node, and from them to its NIC.
    hidden_share: of compute, beside which the local pass over the gradients costs nothing.
    straggler_share: standard deviation of a device's compute from step to step.
    transfer_slowdown: how much longer transfers through a device's port take during backward.
    message_seconds: of launching one collective. hop_seconds: of one step of a ring in a node.
    networks: by name.
    engine_seconds: by system, what its engine spends on each message before it starts.
    measured, fitted: where the measurements come from, and how the constants were found.
    """

    name: str
    clusters: tuple[str, ...]
    device: str
    intra_bandwidth_gbps: float
    hidden_share: float
    straggler_share: float
    transfer_slowdown: float
    message_seconds: float
    hop_seconds: float
    networks: dict[str, NetworkConstants]
    engine_seconds: dict[str, float]
    calibrated: CalibratedRange
    measured: str
    fitted: str
    version: Literal[2] = 2
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        for field, value, (least, most, why) in self._bounded():
            if not least <= value <= most:
                raise InvalidInput(
                    f"constants {self.name!r}: {field} is {value:g}, physically it is "
                    f"{least:g} to {most:g}: {why}.",
                    thing=field,
                    value=value,
                    remedy="Correct the constants, or fit them anew with "
                    "`python -m benchmarks.published.published_rows --fit`.",
                )

    def _bounded(self) -> Iterator[tuple[str, float, tuple[float, float, str]]]:
        """Every constant with its bounds."""
        for field, bounds in PHYSICAL_BOUNDS.items():
            if field != "engine_seconds":
                yield field, getattr(self, field), bounds
        for system, seconds in self.engine_seconds.items():
            yield f"engine_seconds of {system}", seconds, PHYSICAL_BOUNDS["engine_seconds"]
        for name, network in self.networks.items():
            most = PAYLOAD_SHARE[network.transport]
            why = f"{network.transport} carries no more of the wire's rate"
            yield f"{name}: payload_share", network.payload_share, (0.5, most, why)
            yield f"{name}: hop_seconds", network.hop_seconds, PHYSICAL_BOUNDS["hop_seconds"]
            if network.server_bandwidth_gbps is not None:
                limits = (0.1, most * network.wire_gbps, why)
                yield f"{name}: server_bandwidth_gbps", network.server_bandwidth_gbps, limits


def load_constants(name: str) -> Constants:
    """The constants of datasets/measurements/NAME.json.

    Raises:
        NotFound: there are none of that name; lists those there are.
    """
    path = data_file("measurements", f"{name}.json")
    return from_json(Constants, path.read_bytes(), source=str(path))


def constants_of(cluster: Cluster) -> Constants | None:
    """The constants that belong to a cluster by its name, if any were fitted."""
    for path in sorted(data_folder("measurements").glob("*.json")):
        constants = load_constants(path.stem)
        if any(fnmatchcase(cluster.name, pattern) for pattern in constants.clusters):
            return constants
    return None
