"""How far a prediction may be off, by how far its domain is from what constants were fitted to."""

from dataclasses import dataclass
from math import log2

from autosync.cluster import Cluster
from autosync.domain import Domain
from autosync.simulator.cost.fitted_constants import Constants
from autosync.simulator.cost.network_constants import (
    CONNECTION_RANGE_GBPS,
    RDMA_LATENCY_US,
    port_gbps,
    uses_tcp,
)
from autosync.simulator.cost.replicated_compute import gradient_bytes

ESTIMATED_COMPUTE_SHARE = 0.25
"""A roofline's seconds of a step may be off by this much. With one efficiency for all operations it
was 4 % off for ResNet-50 and 14 % for BERT-Base; no model that did not set it was measured."""
RATE_TOLERANCE = 1.3
"""Networks whose payload differs by less count as measured."""


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """factor: how many times beyond the nearest measured value, above 1. why: a sentence."""

    factor: float
    why: str


def extrapolations(alone: Domain, constants: Constants) -> list[Extrapolation]:
    """In what a domain, profiled on one device alone, lies beyond the measured rows."""
    measured = constants.calibrated
    size = sum(map(gradient_bytes, alone.graph.variables)) / 1e9 / alone.compute_seconds
    found = [
        _beyond(alone.world_size, measured.workers, "{} workers", "{}"),
        _beyond(
            size,
            measured.gigabytes_per_compute_second,
            "{:.2g} GB of gradients per second of compute",
            "{:.2g}",
        ),
        *_network_extrapolations(alone.cluster, constants),
    ]
    others = {device.type for device in alone.cluster.device_of_rank()} - {constants.device}
    if others:
        why = f"constants were measured on {constants.device}, not on {', '.join(sorted(others))}"
        found.append(Extrapolation(2.0, why))
    return [each for each in found if each.factor > 1.0]


def _beyond(value: float, measured: tuple[float, float], words: str, limit: str) -> Extrapolation:
    least, most = measured
    why = f"{words.format(value)}; measured were {limit.format(least)} to {limit.format(most)}"
    return Extrapolation(max(value / most, least / value), why)


def _network_extrapolations(cluster: Cluster, constants: Constants) -> list[Extrapolation]:
    """Of the slowest NIC, beside the measured network of the same transport."""
    hosts = [node for node in cluster.nodes if node.ranks > 0]
    if len(hosts) < 2:
        return []
    transport = "tcp" if uses_tcp(cluster) else "rdma"
    rates = [
        port_gbps(constants, network)
        for network in constants.networks.values()
        if network.transport == transport
    ]
    rate = min(node.bandwidth_gbps for node in hosts)
    found = []
    if rates:
        factor = max(rate / max(rates), min(rates) / rate)
        known = ", ".join(f"{each:.3g}" for each in rates)
        why = f"{rate:.3g} Gbit/s of {transport.upper()} payload; measured was {known}"
        found.append(Extrapolation(factor if factor > RATE_TOLERANCE else 1.0, why))
    if connection_limits(cluster):
        low, high = CONNECTION_RANGE_GBPS
        why = (
            f"NICs of {rate:.3g} Gbit/s under TCP (latencies of {RDMA_LATENCY_US:g} us and more "
            f"are taken for TCP), of which one connection reaches {low:g} to {high:g}: "
            "`autosync probe` measures yours, or state `connection_gbps` in the cluster file"
        )
        found.append(Extrapolation(rate / low, why))
    return found


def connection_limits(cluster: Cluster) -> bool:
    """Whether one TCP connection is slower than the NICs, and the file does not say how fast."""
    hosts = [node for node in cluster.nodes if node.ranks > 0]
    fast = min(node.bandwidth_gbps for node in hosts) > CONNECTION_RANGE_GBPS[0]
    return uses_tcp(cluster) and len(hosts) > 1 and fast and not cluster.connection_gbps


def interval_share(
    constants: Constants, beyond: list[Extrapolation], compute_is_known: bool
) -> float:
    """Relative half-width of the interval in which nine of ten measurements are expected.

    Within the measured range: what left-out rows showed. Every doubling beyond it adds as much.
    """
    doublings = sum(log2(each.factor) for each in beyond)
    share = constants.calibrated.error_share * (1.0 + doublings)
    return share + ESTIMATED_COMPUTE_SHARE * (not compute_is_known)
