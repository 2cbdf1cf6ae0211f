"""A testbed measures itself: the payload rate of every link, and the latency of every pair."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import result_of, submit
from autosync.trials.testbed.rate_probes import InaccurateLink, RateProbes

Rates = NDArray[np.float64]

TOLERANCE = 0.05
TRIES = 3

TOGETHER_GBPS = 4.0
"""Traffic that runs at once while links are measured, and nothing else does."""


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Payload between two nodes (indices), received at `to`, while both ends send; or from a node
    to itself, in one direction.

    expected_bytes_per_second: the cluster file's, times s / k. latency_seconds: one way, in the
        testbed's own time; None within a node, where it is not measured.
    """

    sender: int
    to: int
    bytes_per_second: float
    expected_bytes_per_second: float
    latency_seconds: float | None = None

    @property
    def error(self) -> float:
        """Relative to the expected rate."""
        return self.bytes_per_second / self.expected_bytes_per_second - 1

    @property
    def words(self) -> str:
        if self.sender == self.to:
            return f"within node {self.to}"
        return f"from node {self.sender} to node {self.to}"


def measured_links(
    probes: RateProbes, expected: Rates, within: Sequence[int] = ()
) -> tuple[LinkRate, ...]:
    """Every ordered pair of nodes, and each node of `within` by itself, disjoint ones at once; of
    up to `TRIES` the one nearest the file counts, since passing load only takes away.

    expected: `(nodes, nodes)` payload bytes a second, the file's times s / k.

    Raises:
        InaccurateLink: a link cannot be measured at all.
    """
    links = [(i, j) for i in range(len(expected)) for j in range(i)] + [(i, i) for i in within]
    best: dict[tuple[int, int], LinkRate] = {}
    for _ in range(TRIES):
        remeasured = [(i, j) for i, j in links if _worst(best, i, j) > TOLERANCE]
        for together in _rounds(remeasured, expected):
            for rate in _measured(probes, together, expected):
                key = rate.sender, rate.to
                if key not in best or abs(rate.error) < abs(best[key].error):
                    best[key] = rate
    return tuple(best[key] for key in sorted(best))


def refuse_inaccurate_links(links: tuple[LinkRate, ...], testbed_id: str) -> None:
    """Raises InaccurateLink naming the worst link, when it is more than 5 % off."""
    worst = max(links, key=lambda link: abs(link.error), default=None)
    if worst is None or abs(worst.error) <= TOLERANCE:
        return
    raise InaccurateLink(
        f"testbed {testbed_id}: the link {worst.words} carries "
        f"{worst.bytes_per_second * 8e-6:.1f} Mbit/s where the file says "
        f"{worst.expected_bytes_per_second * 8e-6:.1f}.",
        thing=f"link {worst.sender} -> {worst.to}",
        value=worst.error,
        remedy="Stop what else loads this machine, or choose a smaller byte scale or a larger "
        "time scale.",
    )


def _worst(best: dict[tuple[int, int], LinkRate], i: int, j: int) -> float:
    if (i, j) not in best or (j, i) not in best:
        return np.inf
    return max(abs(best[i, j].error), abs(best[j, i].error))


def _rounds(links: list[tuple[int, int]], expected: Rates) -> list[list[tuple[int, int]]]:
    """Links in rounds of disjoint ones that together stay below `TOGETHER_GBPS`."""
    rounds: list[list[tuple[int, int]]] = []
    for link in links:
        for group in rounds:
            busy = {node for other in group for node in other}
            load = sum(len(_ends(i, j)) * expected[i, j] for i, j in [*group, link]) * 8e-9
            if not busy & set(link) and load <= TOGETHER_GBPS:
                group.append(link)
                break
        else:
            rounds.append([link])
    return rounds


def _ends(i: int, j: int) -> list[tuple[int, int, bool]]:
    """(own node, peer, whether it dials) of each end that receives."""
    return [(i, j, False), (j, i, True)] if i != j else [(i, i, True)]


def _measured(probes: RateProbes, links: list[tuple[int, int]], expected: Rates) -> list[LinkRate]:
    """Disjoint links at once, both directions."""
    rates: list[LinkRate] = []
    with ThreadPoolExecutor(2 * len(links)) as threads:
        asked = [
            (own, peer, submit(threads, probes.pair, own, peer, dial))
            for i, j in links
            for own, peer, dial in _ends(i, j)
        ]
        for own, peer, answer in asked:
            found = result_of(answer)
            rates.append(
                LinkRate(
                    sender=peer,
                    to=own,
                    bytes_per_second=found["bytes_per_second"],
                    expected_bytes_per_second=float(expected[peer, own]),
                    latency_seconds=found.get("latency_seconds"),
                )
            )
    return rates
