"""A process on every node of a testbed that measures what its links carry."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from autosync.errors import AutosyncError
from autosync.trials.namespaces import Testbed

RATES_SCRIPT = str(Path(__file__).with_name("rates.py"))

BURST_BYTES = 128 * 1024
"""What a shaper lets pass at once after a pause; see `shaping.BURST`."""

SLOW_BYTES_PER_SECOND = 32e6
"""Below this a small send buffer still outlasts the pauses that a sender's process has (6 ms)."""


class InaccurateLink(AutosyncError):
    """A testbed does not carry what the cluster file says."""


class RateProbes:
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

    def __enter__(self) -> "RateProbes":
        self._ports = [
            int(self._ask(node, {"op": "listen", "address": address})["port"])
            for node, address in enumerate(self._testbed.addresses)
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def pair(self, own: int, peer: int, dial: bool, rate: float) -> dict[str, float]:
        """One end's part in measuring a pair; `rate` is what is expected, in bytes a second."""
        # Both shapers' bursts pass at once: begin behind them, and let them weigh little.
        skip = 0.05 + 2 * BURST_BYTES / rate
        seconds = skip + max(0.2, 12 * BURST_BYTES / rate)
        answer: dict[str, float] = self._ask(
            own,
            {
                "op": "pair",
                "dial": dial,
                "address": self._testbed.addresses[peer],
                "port": self._ports[peer],
                "seconds": seconds,
                "skip": skip,
                "slow": rate < SLOW_BYTES_PER_SECOND,
            },
        )
        return answer

    def ring(self, rounds: list[tuple[int, int]]) -> list[dict[str, list[float]]]:
        """What every node says of (piece bytes, steps) rounds; see `rates.go_round`."""
        count = len(self._processes)
        with ThreadPoolExecutor(count) as threads:
            asked = [
                threads.submit(
                    self._ask,
                    node,
                    {
                        "op": "ring",
                        "address": self._testbed.addresses[(node + 1) % count],
                        "port": self._ports[(node + 1) % count],
                        "rounds": rounds,
                    },
                )
                for node in range(count)
            ]
            return [answer.result() for answer in asked]

    def _ask(self, node: int, command: dict[str, object]) -> dict[str, Any]:
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
        answer: dict[str, Any] = json.loads(line)
        return answer
