"""How long NCCL's operations take on a topology: what predictions and commands ask for."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autosync.cluster.collective_curve import CollectiveCurve
from autosync.simulator.backends.nccl.algorithms import Candidate, generation
from autosync.simulator.backends.nccl.constants import Constant, constants, fitted_constants
from autosync.simulator.backends.nccl.measured_curves import at_measured, curve_for
from autosync.simulator.backends.nccl.tuner import (
    NOTHING_FORCED,
    Forced,
    fastest,
    runnable,
    stated_ranges,
)
from autosync.simulator.topology import Topology

F64 = NDArray[np.float64]

KNOTS_BYTES: F64 = 2.0 ** np.arange(3.0, 38.5, 0.5)
"""8 B to 256 GiB."""
SEGMENT_ERROR = 0.04


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """seconds, low_seconds, high_seconds f64[n]: of each size; between the last two nine of ten
    measurements are expected. algorithm, protocol: n names. binding: what takes most of
    each time, a word of `Candidate.binding_at` or the name of a link; "" for a single rank."""

    seconds: F64
    low_seconds: F64
    high_seconds: F64
    algorithm: tuple[str, ...]
    protocol: tuple[str, ...]
    binding: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CostSegment:
    """What an operation costs from `least_bytes` on, up to the next segment's.

    seconds = startup_seconds + bytes x seconds_per_byte, of the whole buffer as nccl-tests count
    it. gpu_bytes, nic_bytes: bytes through each GPU's port and through each NIC that the team uses,
    in one direction, and spine_bytes through a leaf's links to the spine, per byte of the message.
    channels: how many NCCL runs at once.
    """

    least_bytes: float
    startup_seconds: float
    seconds_per_byte: float
    gpu_bytes: float
    nic_bytes: float
    spine_bytes: float
    channels: int


def collective_times(
    topology: Topology, operation: str, size_bytes: F64, forced: Forced = NOTHING_FORCED
) -> CollectiveTimes:
    """Seconds of an operation at each size, without anything beside it: as measured on the cluster
    where its file holds curves of it, else by the constants.

    size_bytes f64[n]: the whole buffer, as nccl-tests count it (of an all-gather the output, of a
    reduce-scatter the input).

    Raises:
        InvalidInput: no such operation, algorithm or protocol, or none that runs on the topology.
    """
    sizes = np.asarray(size_bytes, dtype=np.float64)
    if not runnable(topology, operation, forced):
        zeros, none = np.zeros(len(sizes)), ("",) * len(sizes)
        return CollectiveTimes(zeros, zeros, zeros, none, none, none)
    seconds, chosen, half_width = _times(topology, operation, sizes, forced)
    factor = np.exp(half_width)
    return CollectiveTimes(
        seconds,
        seconds / factor,
        seconds * factor,
        tuple(each.algorithm for each in chosen),
        tuple(each.protocol for each in chosen),
        tuple(each.binding_at(size) for each, size in zip(chosen, sizes.tolist(), strict=True)),
    )


def log_widths(
    choices: tuple[Candidate, ...], place: NDArray[np.int64], size_bytes: F64, seconds: F64
) -> F64:
    """One standard deviation of the logarithm of each time, `(n,)`, as its constants are wide."""
    per_byte, startup, rate = np.array(
        [(each.seconds_per_byte, each.startup_width, each.rate_width) for each in choices]
    )[place].T
    transfer = size_bytes * per_byte
    result: F64 = np.hypot((seconds - transfer) * startup, transfer * rate) / seconds
    return result


def _times(
    topology: Topology, operation: str, size_bytes: F64, forced: Forced
) -> tuple[F64, list[Candidate], F64]:
    """Seconds, what runs, and half the width of the logarithm's interval, of each size; `(n,)`
    each. forced: in place of what the topology's jobs tell NCCL."""
    ranges = stated_ranges(topology, operation) if forced == NOTHING_FORCED else ()
    if not ranges:
        return _times_within(topology, operation, size_bytes, forced)
    least_bytes = [least for least, _ in ranges]
    of_range = np.searchsorted(least_bytes, size_bytes, side="right") - 1
    seconds, half_width = np.empty_like(size_bytes), np.empty_like(size_bytes)
    chosen: dict[int, Candidate] = {}
    for place, (_, stated) in enumerate(ranges):
        rows = np.flatnonzero(of_range == place)
        seconds[rows], runs, half_width[rows] = _times_within(
            topology, operation, size_bytes[rows], stated
        )
        chosen |= dict(zip(rows.tolist(), runs, strict=True))
    return seconds, [chosen[row] for row in range(len(size_bytes))], half_width


def counting_curve(
    topology: Topology, operation: str, forced: Forced
) -> tuple[CollectiveCurve | None, Forced]:
    """The measured curve that counts, and what it was forced to: as `forced`, with NCCL's own
    channels, else nothing."""
    curve = curve_for(topology, operation, forced.algorithm, forced.protocol)
    if curve is not None:
        return curve, replace(forced, channels=0)
    return curve_for(topology, operation, "", ""), NOTHING_FORCED


def _times_within(
    topology: Topology, operation: str, size_bytes: F64, forced: Forced
) -> tuple[F64, list[Candidate], F64]:
    """`_times` where all sizes are forced alike. What was measured of NCCL's own choice over
    what the constants say of it counts for what is forced without a curve, too: otherwise a forced
    choice would seem faster wherever a cluster is slower than the constants."""
    choices = runnable(topology, operation, forced)
    seconds, place = fastest(choices, size_bytes)
    scale = fitted_constants().interval_scale
    half_width: F64 = scale * log_widths(choices, place, size_bytes, seconds)
    curve, measured = counting_curve(topology, operation, forced)

    def constants_seconds(team: Topology, sizes: F64) -> F64:
        return fastest(runnable(team, operation, measured), sizes)[0]

    if curve is not None and measured == forced:
        seconds, half_width = at_measured(
            topology, curve, size_bytes, constants_seconds, half_width
        )
    elif curve is not None:
        expected, _, _ = _times_within(topology, operation, size_bytes, measured)
        seconds = seconds * expected / constants_seconds(topology, size_bytes)
    return seconds, [choices[each] for each in place], half_width


@lru_cache(maxsize=4096)
def cost_segments(topology: Topology, operation: str) -> tuple[CostSegment, ...]:
    """The same as affine pieces, ascending in size and within SEGMENT_ERROR of it; empty for a
    single rank. Where measured times fall with size, each piece begins at what was measured.

    Raises:
        InvalidInput: as `collective_times`.
    """
    if not runnable(topology, operation, NOTHING_FORCED):
        return ()
    seconds, chosen, _ = _times(topology, operation, KNOTS_BYTES, NOTHING_FORCED)
    found: list[CostSegment] = []
    for first, last in pieces(KNOTS_BYTES, seconds):
        slope = (seconds[last] - seconds[first]) / (KNOTS_BYTES[last] - KNOTS_BYTES[first])
        run = chosen[(first + last) // 2]
        if topology.curves:  # a measured time may grow by less than its bytes take, or fall
            slope = max(slope, _least_seconds_per_byte(topology, run))
        found.append(
            CostSegment(
                least_bytes=float(KNOTS_BYTES[first]) if found else 0.0,
                startup_seconds=max(0.0, float(seconds[first] - slope * KNOTS_BYTES[first])),
                seconds_per_byte=float(slope),
                gpu_bytes=run.gpu_bytes,
                nic_bytes=run.nic_bytes,
                spine_bytes=run.spine_bytes,
                channels=run.channels,
            )
        )
    return tuple(found)


def _least_seconds_per_byte(topology: Topology, run: Candidate) -> float:
    """What its bytes take of GPUs' links and of NICs at their nominal rates."""
    inside = run.gpu_bytes / topology.link_gbytes_per_second
    outside = run.nic_bytes / topology.nic_gbytes_per_second if topology.nodes > 1 else 0.0
    return max(inside, outside) * 1e-9


def pieces(size_bytes: F64, seconds: F64) -> list[tuple[int, int]]:
    """The fewest chords, from left to right, within SEGMENT_ERROR of the curve at its knots."""
    found, first = [], 0
    while first < len(size_bytes) - 1:
        last = first + 1
        while last + 1 < len(size_bytes) and _is_straight(size_bytes, seconds, first, last + 1):
            last += 1
        found.append((first, last))
        first = last
    return found


def _is_straight(size_bytes: F64, seconds: F64, first: int, last: int) -> bool:
    within = slice(first, last + 1)
    ends = [first, last]
    chord = np.interp(size_bytes[within], size_bytes[ends], seconds[ends])
    return bool((np.abs(chord / seconds[within] - 1.0) <= SEGMENT_ERROR).all())


def confidence(topology: Topology) -> dict[str, dict[str, Constant]]:
    """The constants that a topology's times use: by class, by quantity, with how many sweeps each
    was measured on."""
    return {
        name: {quantity: each for (owner, quantity), each in constants().items() if owner == name}
        for name in classes_of(topology)
    }


def classes_of(topology: Topology) -> tuple[str, ...]:
    """The classes whose constants a topology's times rest on."""
    found = [generation(topology)]
    if topology.gpus_per_node > 1:
        found.append(topology.gpu_link)
    if topology.nodes > 1:
        found.append(topology.network)
    return tuple(found)
