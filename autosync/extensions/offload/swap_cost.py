"""Swapping on one rank: what then is on the device, and how long compute waits for transfers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autosync.devices import DEVICE_TYPES
from autosync.domain import Domain
from autosync.extensions.offload.schedule import (
    F64,
    HostLink,
    IdleSpans,
    Moments,
    SwapSchedule,
    make_schedule,
    stall_seconds,
)


@dataclass(frozen=True, slots=True)
class RankSwap:
    """stall_seconds: of an iteration, beside compute_seconds of forward and backward."""

    schedule: SwapSchedule
    stall_seconds: float
    compute_seconds: float


def base_bytes(held_bytes: F64, spans: IdleSpans) -> F64:
    """`(M,)`: what is left of the bytes of each moment while every idle span is elsewhere."""
    change = np.zeros(len(held_bytes) + 1)
    np.add.at(change, spans.begin, spans.size_bytes)
    np.add.at(change, spans.end, -spans.size_bytes)
    left: F64 = np.maximum(held_bytes - change.cumsum()[:-1], 0.0)
    return left


def rank_swap(
    domain: Domain,
    held_bytes: F64,
    spans: IdleSpans,
    factor: float,
    budget_bytes: float,
    link: HostLink,
) -> RankSwap:
    """held_bytes f64[2n + 1]: without swapping, of each moment and of the optimizer's step. factor:
    how many times the profiled compute the rank takes.

    Raises:
        InvalidStrategy: the budget is less than the least that works.
    """
    seconds = factor * _moment_seconds(domain)
    moments = Moments(seconds, base_bytes(held_bytes, spans))
    schedule = make_schedule(spans, moments, budget_bytes, link)
    stalled = stall_seconds(schedule, seconds, link)
    return RankSwap(schedule, stalled, float(seconds.sum()))


def swapped_peaks(held_bytes: F64, spans: Sequence[IdleSpans], budget_bytes: float) -> F64:
    """`(world,)`: the most that each rank holds with swapping: what is left with all that is idle
    elsewhere, and all of the budget where that is more, if the rank needs as much.

    held_bytes f64[world, 2n + 1]: without swapping. spans: of each rank.
    """
    pairs = zip(held_bytes, spans, strict=True)
    least = [base_bytes(held, idle).max() for held, idle in pairs]
    most: F64 = np.maximum(least, np.minimum(held_bytes.max(axis=1), budget_bytes))
    return most


def host_link(domain: Domain, rank: int) -> HostLink:
    """At the full rate of the device's PCIe slot, which no transfer exceeds."""
    device = domain.cluster.device_of_rank()[rank]
    return HostLink(DEVICE_TYPES[device.type].pcie_gbps * 1e9 / 8)


def _moment_seconds(domain: Domain) -> F64:
    """Profiled seconds of each moment; those of the optimizer's step hide no transfer."""
    profile, order = domain.profile, domain.graph.backward_order
    backward = [profile.backward_seconds[operation] for operation in order]
    return np.array([*profile.forward_seconds, *backward, 0.0])
