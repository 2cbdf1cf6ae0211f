"""Fits how much longer compute takes while messages are in flight, to recorded iterations."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.compute_time import compute_factors
from autosync.simulator.timeline.intervals import common_seconds, union
from autosync.strategy import even_replicas
from autosync.trials.measured_timeline import ComputeTimes, MeasuredTimeline

F64 = NDArray[np.float64]


def fit_overlap_slowdown(timelines: Iterable[MeasuredTimeline], domain: Domain) -> float | None:
    """A cluster's `overlap_slowdown`, from recorded iterations of strategies with even shares.

    What backward and the forward pass after it took beyond the profile's seconds, over the
    profile's seconds of what ran while the rank's messages were in flight. (A clock shows when
    a message is handed to the backend, not when its bytes begin to move.)

    None where records cannot tell: no message was recorded or none was in flight beside compute,
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
            beside += common_seconds(spans, union(*map(np.array, times)))
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
