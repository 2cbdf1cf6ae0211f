"""How long a tuning takes to end when it is cancelled, and a worker when it is asked to stop.

    python -m benchmarks.service.time_to_end [--model bert_large] [--ends 40] [--budget 24]

One tuning with a worker of its own, ended at random moments by turns (cancelled, SIGTERM, SIGINT)
and resumed, so that the moments fall into all of its phases. What is timed is from the request
until the database says how the tuning ended and all that the worker had started is gone; after a
signal, the worker too. Printed by phase: the median and the longest. Exit status 1 where some
process stays.
"""

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from autosync.api.db import Database, connect, migrate
from autosync.api.db.tables import TuningRow
from autosync.api.engine import tuning_queue
from autosync.api.engine.submission import enqueue
from autosync.api.engine.tuning_request import TuningRequest, at_scales
from autosync.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.environment import DATABASE_URL_VARIABLE, PASSED_VARIABLE
from autosync.models import bundled
from autosync.profiling import estimate_profile
from autosync.search.loop.settings import Settings

CLUSTER = "example-4x1"
MARK = ("AUTOSYNC_TIME_TO_END", secrets.token_hex(8))
PAUSE_SECONDS = (0.5, 25.0)
"""Between a resumption and the next end: some fall into the start of the worker, some behind it."""
LONGEST_SECONDS = 120.0
POLL_SECONDS = 0.01


@dataclass
class EndedTuning:
    """The tuning and its worker. seconds: by how it was ended and in which phase."""

    database: Database
    url: str
    tuning_id: str
    worker: "subprocess.Popen[bytes] | None" = None
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    left_behind: int = 0

    def state(self) -> tuple[str, str]:
        with self.database.reading() as session:
            row = session.get_one(TuningRow, self.tuning_id)
            return row.state, row.phase or "opening"

    def run_until(self, moment: float) -> bool:
        """Whether it runs at that moment; else it has ended by itself."""
        if self.worker is None or self.worker.poll() is not None:
            marked = {MARK[0]: MARK[1], PASSED_VARIABLE: MARK[0], DATABASE_URL_VARIABLE: self.url}
            command = [sys.executable, "-m", "autosync.api.cli.main", "worker"]
            environment = {**os.environ, **marked}
            self.worker = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        until(lambda: self.state()[0] != "queued")
        while time.monotonic() < moment and self.state()[0] == "running":
            time.sleep(POLL_SECONDS)
        return self.state()[0] == "running"

    def end(self, how: str) -> None:
        assert self.worker is not None
        phase, begun = self.state()[1], time.monotonic()
        if how == "cancel":
            tuning_queue.cancel(self.database, self.tuning_id)
            ended = until(lambda: self.state()[0] == "cancelled" and not self.started())
        else:
            self.worker.send_signal(signal.Signals[how])
            ended = until(lambda: self.state()[0] == "queued" and not marked_processes())
        self.left_behind += not ended
        self.seconds.setdefault((how, phase), []).append(time.monotonic() - begun)
        tuning_queue.reopen(self.database, self.tuning_id)

    def started(self) -> list[int]:
        """What the worker has started."""
        assert self.worker is not None
        return [each for each in marked_processes() if each != self.worker.pid]


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(POLL_SECONDS)
    return False


def marked_processes() -> list[int]:
    """All that live with `MARK` in their environment."""
    mark, found = "=".join(MARK).encode(), []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended, or belongs to someone else
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="bert_large")
    parser.add_argument("--ends", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=24)
    parser.add_argument("--simulator", default="ensemble")
    asked = parser.parse_args()
    graph, cluster = bundled(asked.model, None), load_cluster(CLUSTER)
    domain = Domain(graph, cluster, estimate_profile(graph, cluster.fastest_device_type))
    request = TuningRequest(domain, Settings(budget=asked.budget), simulator=asked.simulator)
    rng = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/ends.db"
        migrate(url)
        database = connect(url)
        tuning = EndedTuning(database, url, enqueue(database, at_scales(request, None, None)))
        try:
            for number in range(asked.ends):
                if not tuning.run_until(time.monotonic() + rng.uniform(*PAUSE_SECONDS)):
                    tuning.tuning_id = enqueue(database, at_scales(request, None, None))
                    continue
                tuning.end(("cancel", "SIGTERM", "SIGINT")[number % 3])
        finally:
            if tuning.worker is not None:
                tuning.worker.kill()
                tuning.worker.wait()
            database.close()
    for (how, phase), seconds in sorted(tuning.seconds.items()):
        print(f"{how:8} {phase:8} {len(seconds):3} times: ", end="")
        print(f"median {median(seconds):.2f} s, longest {max(seconds):.2f} s")
    print(f"{tuning.left_behind} times something stayed behind")
    sys.exit(tuning.left_behind > 0)


if __name__ == "__main__":
    main()
