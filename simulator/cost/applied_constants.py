"""Domains and clusters at fitted constants, and how far a prediction by them may be off."""

from dataclasses import dataclass, replace
from math import log, log2, sqrt

import numpy as np

from autosync.cluster import Cluster, MessageCost
from autosync.domain import Domain
from autosync.graph import Variable
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.fitted_constants import Constants, NetworkConstants

RDMA_LATENCY_US = 20.0
"""Nodes of a lower latency are taken to use RDMA: it takes 1 to 5 us, TCP tens."""


def uses_tcp(cluster: Cluster) -> bool:
    """Of several hosts, by backend and stated transport; where none is stated, by latency."""
    if cluster.transport and not backend_of(cluster).always_tcp:
        return len(cluster.nodes) > 1 and cluster.transport == "tcp"
    slow = any(node.latency_us >= RDMA_LATENCY_US for node in cluster.nodes)
    return len(cluster.nodes) > 1 and (backend_of(cluster).always_tcp or slow)


def with_engine(cluster: Cluster, seconds: float) -> Cluster:
    """The cluster under an engine that spends `seconds` on each message."""
    others = tuple(cost for cost in cluster.costs if cost.kind != "engine")
    return replace(cluster, costs=(*others, MessageCost("engine", seconds)))


def port_gbps(constants: Constants, network: NetworkConstants) -> float:
    """Payload of a worker host's NIC: that of its port, or of the slot it sits in."""
    return min(network.wire_gbps * network.payload_share, constants.intra_bandwidth_gbps)


def with_replication_costs(domain: Domain, constants: Constants) -> Domain:
    """A domain profiled on one device alone, with what replication adds to its compute.

    The slowest of many devices is waited for, and every gradient passes once more through its
    device's port (copies and sums that are no message), as far as that does not run beside compute.
    It is added where the gradient becomes ready, and delays it.
    """
    graph, alone = domain.graph, domain.profile
    slowest = 1.0 + straggler_slowdown(domain.world_size, constants.straggler_share)
    exposed = exposed_pass_seconds(domain, constants)
    size_bytes = [gradient_bytes(variable) for variable in graph.variables]
    passed = np.zeros(len(graph.operations))
    np.add.at(passed, list(graph.gradient_after), exposed * np.divide(size_bytes, sum(size_bytes)))
    forward = np.multiply(alone.forward_seconds, slowest)
    backward = np.multiply(alone.backward_seconds, slowest) + passed
    profile = replace(
        alone,
        forward_seconds=tuple(forward.tolist()),
        backward_seconds=tuple(backward.tolist()),
        note=f"{alone.note}; the slowest of {domain.world_size} takes {slowest - 1:.1%} longer, "
        f"gradients pass once more in {exposed * 1e3:.1f} ms",
    )
    return replace(domain, profile=profile)


def straggler_slowdown(workers: int, straggler_share: float) -> float:
    """How much longer than the mean device the slowest takes.

    The expected largest of m normal deviates grows as the root of 2 ln m.
    """
    return straggler_share * sqrt(2.0 * log(workers)) if workers > 1 else 0.0


def exposed_pass_seconds(domain: Domain, constants: Constants) -> float:
    """One more pass of all gradients through a device's port, less what runs beside compute."""
    rates = [node.intra_bandwidth_gbps for node in domain.cluster.nodes if node.ranks > 0]
    slowest = min(rate or constants.intra_bandwidth_gbps for rate in rates)
    pass_seconds = sum(map(gradient_bytes, domain.graph.variables)) * 8 / (slowest * 1e9)
    hidden = constants.hidden_share * domain.compute_seconds
    return max(0.0, pass_seconds - hidden)


def gradient_bytes(variable: Variable) -> float:
    """Of a sparse gradient the rows that an iteration touches."""
    share = variable.touched_rows / variable.shape[0] if variable.sparse else 1.0
    return variable.size_bytes * share


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
    compute = max(alone.compute_seconds, 1e-9)  # a profile may state that nothing computes
    size = sum(map(gradient_bytes, alone.graph.variables)) / 1e9 / compute
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
    return found


def interval_share(
    constants: Constants, beyond: list[Extrapolation], compute_is_known: bool
) -> float:
    """Relative half-width of the interval in which nine of ten measurements are expected.

    Within the measured range: what left-out rows showed. Every doubling beyond it adds as much.
    """
    doublings = sum(log2(each.factor) for each in beyond)
    share = constants.calibrated.error_share * (1.0 + doublings)
    return share + ESTIMATED_COMPUTE_SHARE * (not compute_is_known)
