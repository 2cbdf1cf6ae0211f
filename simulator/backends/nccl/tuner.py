"""Which algorithm and protocol NCCL picks at which size."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autosync.errors import InvalidInput
from autosync.nccl_knobs import NcclKnobs, NcclRange
from autosync.simulator.backends.nccl.algorithms import (
    ALGORITHMS,
    F64,
    OPERATIONS,
    PROTOCOLS,
    Candidate,
    candidates,
)
from autosync.simulator.topology import Topology

ONLY_FORCED = ("CollNet",)
"""Runs where a user says so, since a cluster file does not say whether its switches add up."""


@dataclass(frozen=True, slots=True)
class Forced:
    """What a user sets (NCCL_ALGO, NCCL_PROTO, NCCL_MAX_NCHANNELS); "" and 0: NCCL chooses."""

    algorithm: str = ""
    protocol: str = ""
    channels: int = 0


NOTHING_FORCED = Forced()


def stated_ranges(topology: Topology, operation: str) -> tuple[tuple[float, Forced], ...]:
    """What the topology's jobs tell NCCL of an operation: from how many bytes on, and what, as
    ascending ranges from 0 bytes on; empty where they tell nothing. What does not run on a team, as
    NVLS on four GPUs, leaves NCCL its choice there."""
    knobs = topology.nccl
    offered = candidates(topology, operation)
    own = max((each.channels for each in offered), default=0)
    found = []
    for each in knobs.of_operation(operation):
        forced = _forced_by(each, knobs, own)
        if not any(_is_allowed(one, forced) for one in offered):
            forced = Forced(channels=forced.channels)
        found.append((float(each.least_bytes), forced))
    limited = Forced(channels=_limit(own, knobs.max_ctas))
    if (found and found[0][0] > 0) or (not found and limited != NOTHING_FORCED):
        found.insert(0, (0.0, limited))
    return tuple(found)


def _forced_by(stated: NcclRange, knobs: NcclKnobs, own_channels: int) -> Forced:
    """What one of the ranges of knobs forces. own_channels: that NCCL would run."""
    channels = _limit(own_channels, stated.channels, knobs.max_ctas)
    return Forced(stated.algorithm, stated.protocol, channels)


def _limit(own_channels: int, *stated: int) -> int:
    """Channels, where fewer than NCCL's own are stated; else 0."""
    least = min((each for each in stated if each), default=own_channels)
    return least if least < own_channels else 0


@lru_cache(maxsize=4096)
def runnable(topology: Topology, operation: str, forced: Forced) -> tuple[Candidate, ...]:
    """What NCCL chooses among; empty for a single rank.

    Raises:
        InvalidInput: no such operation, algorithm or protocol, or none that runs on the topology.
    """
    _check("operation", operation, OPERATIONS)
    if forced.algorithm:
        _check("algorithm", forced.algorithm, ALGORITHMS)
    if forced.protocol:
        _check("protocol", forced.protocol, PROTOCOLS)
    found = tuple(
        each.limited_to(forced.channels, topology)
        for each in candidates(topology, operation)
        if _is_allowed(each, forced)
    )
    if not found and topology.ranks > 1:
        raise InvalidInput(
            f"{operation} cannot run by algorithm {forced.algorithm or 'any'}, protocol "
            f"{forced.protocol or 'any'}, on {topology.nodes} nodes of {topology.gpus_per_node} "
            f"{topology.gpu}.",
            thing="algorithm",
            value=forced.algorithm or forced.protocol,
            remedy="Leave the choice to NCCL, or force one that runs there.",
        )
    return found


def _is_allowed(candidate: Candidate, forced: Forced) -> bool:
    if forced.algorithm:
        allowed = candidate.algorithm == forced.algorithm
    else:
        allowed = candidate.algorithm not in ONLY_FORCED
    return allowed and forced.protocol in ("", candidate.protocol)


def _check(thing: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidInput(
            f"NCCL has no {thing} {value!r}.",
            thing=thing,
            value=value,
            remedy=f"Known: {', '.join(known)}.",
        )


def fastest(
    choices: tuple[Candidate, ...], size_bytes: F64
) -> tuple[F64, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Seconds `(n,)` of the fastest at each size, and its place among the choices."""
    seconds = np.array([each.seconds(size_bytes) for each in choices])
    place = seconds.argmin(axis=0)
    return seconds[place, np.arange(len(size_bytes))], place
