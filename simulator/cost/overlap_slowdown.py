"""When messages are on the wire, and what compute loses by it."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.compute_time import compute_factors
from autosync.strategy import even_replicas
from autosync.trials.measured_timeline import ComputeTimes, MeasuredTimeline

F64 = NDArray[np.float64]


def union(starts: F64, stops: F64) -> F64:
    """The intervals in which at least one of the given ones runs: `(intervals, 2)` seconds, in
    order and apart."""
    order = np.argsort(starts, kind="stable")
    reached = np.maximum.accumulate(stops[order]) if len(order) else stops
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = starts[order][1:] > reached[:-1]
    ends = np.roll(begins, -1)
    return np.column_stack([starts[order][begins], reached[ends]])


def fit_overlap_slowdown(timelines: Iterable[MeasuredTimeline], domain: Domain) -> float | None:
    """A cluster's `overlap_slowdown`, from recorded iterations of strategies with even shares.

    What backward and the forward pass after it took beyond the profile's seconds, over the
    profile's seconds of what ran while the rank's messages were under way. (A clock shows when
    a message is handed to the backend, not when its bytes begin to move.)

    None where records cannot tell: no message was recorded or none was under way beside compute,
    or compute lost more than all the time that messages were.
    """
    lost = beside = 0.0
    factors = compute_factors(domain, even_replicas(domain.world_size))
    for timeline in timelines:
        for rank, factor in zip(timeline.ranks, factors, strict=True):
            if rank.messages is None:
                continue
            spans, passes = _backward_and_after(rank.compute)
            plain = domain.timing.backward_seconds
            plain += (passes - 1) * domain.timing.forward_seconds
            lost += float((spans[:, 1] - spans[:, 0]).sum()) - float(factor) * plain
            times = (rank.messages.started_seconds, rank.messages.ended_seconds)
            beside += _common_seconds(spans, union(*map(np.array, times)))
    if not beside > max(lost, 0.0):
        return None
    return max(0.0, lost / (beside - lost))


def _backward_and_after(compute: ComputeTimes) -> tuple[F64, int]:
    """The `(spans, 2)` seconds of the backward pass and of the forward pass after it, waits left
    out; and how many of the two were recorded."""
    first = compute.phase.index("backward")
    phases = compute.phase[first:]
    of_passes = np.array([phase in ("forward", "backward") for phase in phases])
    times = np.column_stack([compute.start_seconds[first:], compute.stop_seconds[first:]])
    return times[of_passes], 1 + ("forward" in phases)


def _common_seconds(some: F64, others: F64) -> float:
    """Of two sets of intervals that are apart, `(n, 2)` and `(m, 2)`."""
    begins = np.maximum(some[:, :1], others[:, 0])
    ends = np.minimum(some[:, 1:], others[:, 1])
    return float(np.maximum(ends - begins, 0.0).sum())
