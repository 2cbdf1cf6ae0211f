"""A testbed measures itself: payload rate and latency of every pair of nodes."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autosync.cluster import Cluster
from autosync.errors import AutosyncError
from autosync.trials.namespaces import Testbed

RATES_SCRIPT = str(Path(__file__).with_name("rates.py"))

TOLERANCE = 0.05
TRIES = 3

BURST_BYTES = 128 * 1024

TOGETHER_GBPS = 4.0
"""Traffic that runs at once while links are measured; see `scaling.CPU_SAFE_GBPS`."""


class InaccurateLink(AutosyncError):
    """A link of the testbed does not carry what the cluster file says."""


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


def measured_links(testbed: Testbed, cluster: Cluster) -> tuple[LinkRate, ...]:
    """Every ordered pair of nodes, disjoint pairs at once; of up to `TRIES` the one nearest the
    file counts, since passing load only takes away."""
    expected = cluster.bandwidth_bytes_per_second() * testbed.byte_scale / testbed.time_scale
    best: dict[tuple[int, int], LinkRate] = {}
    with _Probes(testbed, len(cluster.nodes)) as probes:
        for _ in range(TRIES):
            pairs = [
                (i, j)
                for i in range(len(cluster.nodes))
                for j in range(i)
                if _worst(best, i, j) > TOLERANCE
            ]
            for pair in _rounds(pairs, expected):
                for rate in probes.measure(pair, expected):
                    key = rate.sender, rate.to
                    if key not in best or abs(rate.error) < abs(best[key].error):
                        best[key] = rate
    return tuple(best[key] for key in sorted(best))


def refuse_inaccurate(links: tuple[LinkRate, ...], testbed: Testbed) -> None:
    """Raises InaccurateLink naming the worst link, when it is more than 5 % off."""
    worst = max(links, key=lambda link: abs(link.error), default=None)
    if worst is None or abs(worst.error) <= TOLERANCE:
        return
    stated = worst.bytes_per_second / (1 + worst.error) * 8e-6
    raise InaccurateLink(
        f"testbed {testbed.id}: the link from node {worst.sender} to node {worst.to} carries "
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


def _rounds(pairs: list[tuple[int, int]], expected: Any) -> list[list[tuple[int, int]]]:
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


class _Probes:
    """One `rates.py` process a node."""

    def __init__(self, testbed: Testbed, nodes: int) -> None:
        self._testbed = testbed
        self._processes = [
            subprocess.Popen(
                [*testbed.prefix(node), sys.executable, "-I", "-S", RATES_SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for node in range(nodes)
        ]
        self._ports: list[int] = []

    def __enter__(self) -> "_Probes":
        self._ports = [
            int(self._ask(node, {"op": "listen", "address": address})["port"])
            for node, address in enumerate(self._testbed.addresses)
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def measure(self, pairs: list[tuple[int, int]], expected: Any) -> list[LinkRate]:
        """Disjoint pairs at once, both directions."""
        rates: list[LinkRate] = []
        with ThreadPoolExecutor(2 * len(pairs)) as threads:
            asked = [
                (i, j, threads.submit(self._end, i, j, dial, float(expected[i, j])))
                for pair in pairs
                for i, j, dial in ((pair[0], pair[1], False), (pair[1], pair[0], True))
            ]
            for own, peer, answer in asked:
                found = answer.result()
                rate = float(found["bytes_per_second"])
                error = rate / float(expected[peer, own]) - 1
                rates.append(LinkRate(peer, own, rate, error, float(found["latency_seconds"])))
        return rates

    def _end(self, own: int, peer: int, dial: bool, rate: float) -> dict[str, float]:
        # Both shapers' bursts pass at once: begin behind them, and let them weigh little.
        skip = 0.05 + 2 * BURST_BYTES / rate
        seconds = skip + max(0.2, 16 * BURST_BYTES / rate)
        return self._ask(
            own,
            {
                "op": "pair",
                "dial": dial,
                "address": self._testbed.addresses[peer],
                "port": self._ports[peer],
                "seconds": seconds,
                "skip": skip,
            },
        )

    def _ask(self, node: int, command: dict[str, object]) -> dict[str, float]:
        process = self._processes[node]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise InaccurateLink(
                f"the probe on node {node} of testbed {self._testbed.id} ended.",
                thing=f"node {node}",
            )
        answer: dict[str, float] = json.loads(line)
        return answer
