"""A process on every node of a testbed that measures what its links carry."""

import contextlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import result_of, submit, wait_readable
from autosync.errors import AutosyncError
from autosync.trials.testbed.link_shaping import BURST_BYTES
from autosync.trials.testbed.namespaces import Testbed

RATES_SCRIPT = str(Path(__file__).with_name("payload_rates.py"))

SLOW_BYTES_PER_SECOND = 32e6
"""Below this a small send buffer still outlasts the pauses that a sender's process has (6 ms)."""

PATIENCE_SECONDS = 10.0
"""How long a probe may be silent beyond twice the time that it takes at the expected rate.
One whose other end has died would wait for ever, and with it whoever measures next."""


class InaccurateLink(AutosyncError):
    """A testbed does not carry what the cluster file says."""


class RateProbes:
    """One `payload_rates.py` process a node.

    expected: `(nodes, nodes)` payload bytes a second, the file's times s / k; the diagonal is
        that of a node's loopback.
    """

    def __init__(self, testbed: Testbed, expected: NDArray[np.float64]) -> None:
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
        """What every node says of (piece bytes, steps) rounds; see `payload_rates.go_round`.

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
        with contextlib.suppress(BrokenPipeError):  # it has ended: its silence tells
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
            f"testbed {self._testbed.id}: {thing} cannot be measured: {why}.",
            thing=thing,
            remedy="Stop what else loads this machine, and try again.",
        )
