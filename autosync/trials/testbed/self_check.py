"""What an emulated cluster measures of itself before any trial: the payload rate of every link, the
latency of every pair of nodes, and all-reduces of three sizes.

A shaper lets a burst pass at once after a pause, so a single small message may exceed the rate. A
stream of all-reduces may not, whatever their size, as long as sending a piece takes longer than the
latency to the next node. So every size runs as a stream, after bytes that use the bursts up and one
all-reduce that is not timed, and must take the time of its bytes at the slowest link's rate. Below
the smallest size processors limit an all-reduce, not links; the latencies of pairs show that.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import result_of, submit, wait_readable
from autosync.cluster import Cluster
from autosync.errors import AutosyncError
from autosync.trials.testbed.link_shaping import BURST_BYTES, emulated_nodes
from autosync.trials.testbed.namespaces import Testbed

Rates = NDArray[np.float64]
"""`(nodes, nodes)` payload bytes a second, the cluster file's times s / k; on the diagonal that
of a node's loopback."""

TOLERANCE = 0.05
TRIES = 3

TOGETHER_GBPS = 4.0
"""Traffic that runs at once while links are measured, and nothing else does."""

STREAM_SECONDS = ((0.08, 1), (0.03, 3), (0.01, 8))
"""How long an all-reduce of each size occupies the slowest link; how many are timed together."""

SETTLING_SECONDS = 0.05
"""Until a new connection has found its rate."""

RATES_SCRIPT = str(Path(__file__).with_name("payload_rates.py"))

SLOW_BYTES_PER_SECOND = 32e6
"""Below this a small send buffer still outlasts the pauses that a sender's process has (6 ms)."""

PATIENCE_SECONDS = 10.0
"""How long a probe may be silent beyond twice the time that it takes at the expected rate.
One whose other end has died would wait for ever, and block the next measurement."""


class InaccurateLink(AutosyncError):
    """A testbed does not carry what the cluster file says."""


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


@dataclass(frozen=True, slots=True)
class AllReduceTime:
    """size_bytes: that each node contributes. seconds: of one all-reduce. error: relative to its
    bytes at the slowest link's rate. slowest: the nodes (indices) whose link held it up."""

    size_bytes: int
    seconds: float
    error: float
    slowest: tuple[int, int]


@dataclass(frozen=True, slots=True)
class SelfCheck:
    links: tuple[LinkRate, ...]
    all_reduces: tuple[AllReduceTime, ...]

    @property
    def largest_error(self) -> float:
        """Of any link or all-reduce, relative to the cluster file; 0 where there are none."""
        errors = [link.error for link in self.links] + [one.error for one in self.all_reduces]
        return max((abs(error) for error in errors), default=0.0)

    @property
    def latency_seconds(self) -> tuple[float, float] | None:
        """Median and largest of all pairs of nodes, one way, in the testbed's own time; None for a
        single node."""
        each = [one.latency_seconds for one in self.links if one.latency_seconds is not None]
        return (median(each), max(each)) if each else None


class RateProbes:
    """One `payload_rates.py` process a node, which measures what its links carry."""

    def __init__(self, testbed: Testbed, expected: Rates) -> None:
        self._testbed = testbed
        self._expected = expected
        self._processes: list[subprocess.Popen[str]] = []
        self._ports: list[int] = []

    def __enter__(self) -> "RateProbes":
        try:
            for node in range(len(self._expected)):
                self._processes.append(self._started(node))
            for node, address in enumerate(self._testbed.addresses):
                command = {"op": "listen", "address": address}
                self._ports.append(int(self._ask(node, command, f"node {node}", 0.0)["port"]))
        except BaseException:  # an interrupt, too, leaves no probe
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _started(self, node: int) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self._testbed.prefix(node), sys.executable, "-I", "-S", RATES_SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def pair(self, own: int, peer: int, dial: bool) -> dict[str, float]:
        """Measure a pair at one end; as a whole where both are the same node.

        Raises:
            InaccurateLink: the link cannot be measured.
        """
        rate = float(self._expected[peer, own])
        # Both shapers' bursts pass at once: begin behind them, and let them weigh little.
        skip = 0.05 + 2 * BURST_BYTES / rate
        seconds = skip + max(0.2, 12 * BURST_BYTES / rate)
        command = {
            "op": "within" if own == peer else "pair",
            "dial": dial,
            "address": self._testbed.addresses[peer],
            "port": self._ports[peer],
            "seconds": seconds,
            "skip": skip,
            "slow": rate < SLOW_BYTES_PER_SECOND,
        }
        return self._ask(own, command, f"link {peer} -> {own}", seconds)

    def ring(self, rounds: list[tuple[int, int]]) -> list[dict[str, list[float]]]:
        """What every node says of (piece bytes, steps) rounds; see `payload_rates.run_ring`.

        Raises:
            InaccurateLink: a link of the ring cannot be measured.
        """
        count = len(self._processes)
        nodes = np.arange(count)
        slowest = float(self._expected[nodes, (nodes + 1) % count].min())
        seconds = sum(piece * steps for piece, steps in rounds) / slowest
        with ThreadPoolExecutor(count) as threads:
            asked = [
                submit(
                    threads,
                    self._ask,
                    node,
                    {
                        "op": "ring",
                        "address": self._testbed.addresses[(node + 1) % count],
                        "port": self._ports[(node + 1) % count],
                        "rounds": rounds,
                    },
                    f"link {(node - 1) % count} -> {node}",
                    seconds,
                )
                for node in range(count)
            ]
            return [result_of(answer) for answer in asked]

    def _ask(
        self, node: int, command: dict[str, Any], thing: str, seconds: float
    ) -> dict[str, Any]:
        """thing: what is measured. seconds: how long that takes at the expected rate."""
        process = self._processes[node]
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which shows below
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        limit_seconds = 2 * seconds + PATIENCE_SECONDS
        if not wait_readable(process.stdout, limit_seconds):
            raise self._unmeasured(thing, f"node {node} has not answered in {limit_seconds:.1f} s")
        if not (line := process.stdout.readline()):
            last_line = process.stderr.read().strip().rpartition("\n")[2]
            why = f"the probe on node {node} has ended ({last_line or 'without a message'})"
            raise self._unmeasured(thing, why)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _unmeasured(self, thing: str, why: str) -> InaccurateLink:
        return InaccurateLink(
            f"the testbed's {thing} cannot be measured: {why}.",
            thing=thing,
            remedy="Stop what else loads this machine, and try again.",
        )


def check_testbed(testbed: Testbed, cluster: Cluster) -> SelfCheck:
    """Every shaped link, then all-reduces on all those between nodes. About 1.4 s for four nodes,
    0.3 s more where links within nodes are shaped.

    Raises:
        InaccurateLink: something is more than 5 % off the file, or cannot be measured; names it.
    """
    expected = cluster.bandwidth_bytes_per_second() * (testbed.byte_scale / testbed.time_scale)
    nodes = emulated_nodes(cluster, testbed.byte_scale, testbed.time_scale)
    within = [node.index for node in nodes if node.loopback_bits is not None]
    with RateProbes(testbed, expected) as probes:
        links = measured_links(probes, expected, within)
        refuse_inaccurate(links)
        all_reduces = measured_all_reduces(probes, expected)
    refuse_inaccurate(all_reduces)
    return SelfCheck(links, all_reduces)


def refuse_inaccurate(measured: Sequence[LinkRate | AllReduceTime]) -> None:
    """Raises InaccurateLink naming the worst of them and its link, when it is more than 5 % off."""
    worst = max(measured, key=lambda one: abs(one.error), default=None)
    if worst is None or abs(worst.error) <= TOLERANCE:
        return
    if isinstance(worst, LinkRate):
        sender, to = worst.sender, worst.to
        what = (
            f"the link {worst.words} carries {worst.bytes_per_second * 8e-6:.1f} Mbit/s where the "
            f"file says {worst.expected_bytes_per_second * 8e-6:.1f}."
        )
    else:
        sender, to = worst.slowest
        what = (
            f"an all-reduce of {worst.size_bytes / 1e3:.0f} KB takes {worst.seconds * 1e3:.1f} ms "
            f"where the file's rates say {worst.seconds / (1 + worst.error) * 1e3:.1f}; it waits "
            f"for the link from node {sender} to node {to}."
        )
    raise InaccurateLink(
        f"the testbed is not as the cluster file says: {what}",
        thing=f"link {sender} -> {to}",
        value=worst.error,
        remedy="Stop what else loads this machine, or choose a smaller byte scale or a larger "
        "time scale.",
    )


def measured_links(
    probes: RateProbes, expected: Rates, within: Sequence[int] = ()
) -> tuple[LinkRate, ...]:
    """Every ordered pair of nodes, and each node of `within` by itself, disjoint ones at once; of
    up to `TRIES` the one nearest the file counts, since passing load only takes away.

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


def measured_all_reduces(probes: RateProbes, expected: Rates) -> tuple[AllReduceTime, ...]:
    """Largest first; of up to `TRIES` streams the one nearest the file counts, as for links."""
    count = len(expected)
    if count < 2:
        return ()
    rate = min(float(expected[node, (node + 1) % count]) for node in range(count))
    best: list[AllReduceTime] = []
    for _ in range(TRIES):
        times = _streams(probes, count, rate)
        pairs = zip(best or times, times, strict=True)
        best = [min(pair, key=lambda one: abs(one.error)) for pair in pairs]
        if all(abs(one.error) <= TOLERANCE for one in best):
            break
    return tuple(best)


def _streams(probes: RateProbes, count: int, rate: float) -> list[AllReduceTime]:
    steps = 2 * (count - 1)
    pieces = [max(1, round(seconds * rate / steps)) for seconds, _ in STREAM_SECONDS]
    # In a single step no link waits for another, so each uses its burst up.
    settling = SETTLING_SECONDS + 2 * BURST_BYTES / rate  # both shapers' bursts
    rounds = [(round(settling * rate), 1)]
    for piece, (_, times) in zip(pieces, STREAM_SECONDS, strict=True):
        rounds += [(piece, steps), (piece, steps * times)]
    answers = probes.ring(rounds)
    found = []
    for number, piece in enumerate(pieces):
        timed = 2 + 2 * number
        timed_steps = rounds[timed][1]
        lasted = median(node["ended"][timed] - node["ended"][timed - 1] for node in answers)
        held_up = max(range(count), key=lambda node: answers[node]["arriving"][timed])
        found.append(
            AllReduceTime(
                size_bytes=piece * count,
                seconds=lasted * steps / timed_steps,
                error=lasted * rate / (timed_steps * piece) - 1,
                slowest=((held_up - 1) % count, held_up),
            )
        )
    return found
