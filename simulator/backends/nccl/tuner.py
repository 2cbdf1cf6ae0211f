"""Which algorithm and protocol NCCL picks at which size."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autosync.errors import InvalidInput
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
        each.limited_to(forced.channels)
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
