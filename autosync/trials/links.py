"""A testbed measures itself: payload rate and latency of every pair of nodes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.trials.rate_probes import InaccurateLink, RateProbes

Rates = NDArray[np.float64]

TOLERANCE = 0.05
TRIES = 3

TOGETHER_GBPS = 4.0
"""Traffic that runs at once while links are measured; see `scaling.CPU_SAFE_GBPS`."""


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Payload between two nodes (indices), received at `to`, while both ends send.

    error: relative to the cluster file times s / k.
    """

    sender: int
    to: int
    bytes_per_second: float
    error: float
    latency_seconds: float


def measured_links(probes: RateProbes, expected: Rates) -> tuple[LinkRate, ...]:
    """Every ordered pair of nodes, disjoint pairs at once; of up to `TRIES` the one nearest the
    file counts, since passing load only takes away.

    expected: `(nodes, nodes)` payload bytes a second, the file's times s / k.
    """
    best: dict[tuple[int, int], LinkRate] = {}
    for _ in range(TRIES):
        pairs = [
            (i, j) for i in range(len(expected)) for j in range(i) if _worst(best, i, j) > TOLERANCE
        ]
        for pair in _rounds(pairs, expected):
            for rate in _measured_pairs(probes, pair, expected):
                key = rate.sender, rate.to
                if key not in best or abs(rate.error) < abs(best[key].error):
                    best[key] = rate
    return tuple(best[key] for key in sorted(best))


def refuse_inaccurate_links(links: tuple[LinkRate, ...], testbed_id: str) -> None:
    """Raises InaccurateLink naming the worst link, when it is more than 5 % off."""
    worst = max(links, key=lambda link: abs(link.error), default=None)
    if worst is None or abs(worst.error) <= TOLERANCE:
        return
    stated = worst.bytes_per_second / (1 + worst.error) * 8e-6
    raise InaccurateLink(
        f"testbed {testbed_id}: the link from node {worst.sender} to node {worst.to} carries "
        f"{worst.bytes_per_second * 8e-6:.1f} Mbit/s where the file says {stated:.1f}.",
        thing=f"link {worst.sender} -> {worst.to}",
        value=worst.error,
        remedy="Stop what else loads this machine, or choose a smaller byte scale or a larger "
        "time scale.",
    )


def _worst(best: dict[tuple[int, int], LinkRate], i: int, j: int) -> float:
    if (i, j) not in best or (j, i) not in best:
        return np.inf
    return max(abs(best[i, j].error), abs(best[j, i].error))


def _rounds(pairs: list[tuple[int, int]], expected: Rates) -> list[list[tuple[int, int]]]:
    """Pairs in rounds of disjoint ones that together stay below `TOGETHER_GBPS`."""
    rounds: list[list[tuple[int, int]]] = []
    for pair in pairs:
        for group in rounds:
            busy = {node for other in group for node in other}
            load = sum(2 * expected[i, j] for i, j in [*group, pair]) * 8e-9
            if not busy & set(pair) and load <= TOGETHER_GBPS:
                group.append(pair)
                break
        else:
            rounds.append([pair])
    return rounds


def _measured_pairs(
    probes: RateProbes, pairs: list[tuple[int, int]], expected: Rates
) -> list[LinkRate]:
    """Disjoint pairs at once, both directions."""
    rates: list[LinkRate] = []
    with ThreadPoolExecutor(2 * len(pairs)) as threads:
        asked = [
            (i, j, threads.submit(probes.pair, i, j, dial, float(expected[i, j])))
            for pair in pairs
            for i, j, dial in ((pair[0], pair[1], False), (pair[1], pair[0], True))
        ]
        for own, peer, answer in asked:
            found = answer.result()
            rate = float(found["bytes_per_second"])
            error = rate / float(expected[peer, own]) - 1
            rates.append(LinkRate(peer, own, rate, error, float(found["latency_seconds"])))
    return rates
