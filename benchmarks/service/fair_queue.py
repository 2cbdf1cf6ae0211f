"""Who waits how long: tunings of several clients, on a few workers.

    python -m benchmarks.service.fair_queue [--tunings 20] [--workers 3] [--db URL]

One client asks for all but six of the tunings at once; then three others ask for two each. Of each
client is printed how long its tunings waited and when its last one ended. In the order of asking
the three would wait for all of the first one's. Tunings are small and real: a model of six
variables, trials on processes of this machine, which runs one trial at a time.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from autosync.api.client.rest_client import Client
from autosync.api.db import migrate
from autosync.api.views.schemas import Tuning
from autosync.environment import DATABASE_URL_VARIABLE
from tests.api.http.serving import served
from tests.domains import chain_graph, grid_cluster

FIRST, OTHERS, EACH = "alice", ("bob", "carol", "dave"), 2
TOKENS = {name: f"{name}-{'0123456789abcdef' * 2}" for name in (FIRST, *OTHERS)}
LONGEST_SECONDS = 900.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tunings", type=int, default=20)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--db", help="an empty database; by default a SQLite file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.db or f"sqlite:///{Path(folder) / 'queue.db'}"
        migrate(url)
        token = ",".join(f"{name}:{secret}" for name, secret in TOKENS.items())
        with served(url, token) as service:
            asked = ask(service.address, given.tunings)
            began = time.time()
            with workers(url, given.workers):
                ended = wait(service.address, asked)
            show(asked, ended, began, given.workers)


def ask(address: str, count: int) -> dict[str, list[str]]:
    """The ids of each client's tunings; no worker is there yet."""
    wanted = {FIRST: count - len(OTHERS) * EACH, **dict.fromkeys(OTHERS, EACH)}
    found: dict[str, list[str]] = {}
    for name, number in wanted.items():
        with Client(address, TOKENS[name]) as service:
            found[name] = [
                service.tunings.start(
                    chain_graph(),
                    grid_cluster(2),
                    budget=3,
                    proposals=50,
                    repeats=2,
                    seed=seed,
                    launcher="local",
                    byte_scale=1.0,
                    time_scale=1.0,
                    simulator="timeline",
                    probe=False,
                ).id
                for seed in range(number)
            ]
    return found


@contextmanager
def workers(url: str, count: int) -> Iterator[None]:
    environment = {**os.environ, DATABASE_URL_VARIABLE: url}
    command = [sys.executable, "-m", "autosync.api.cli.main", "worker"]
    started = [
        subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(timeout=30)


def wait(address: str, asked: dict[str, list[str]]) -> dict[str, Tuning]:
    """All of them at their end, by id."""
    ended: dict[str, Tuning] = {}
    deadline = time.monotonic() + LONGEST_SECONDS
    with Client(address, TOKENS[FIRST]) as service:
        for tuning_id in (each for ids in asked.values() for each in ids):
            ended[tuning_id] = service.tunings.wait(
                tuning_id, timeout_seconds=max(1.0, deadline - time.monotonic())
            )
    return ended


def show(asked: dict[str, list[str]], ended: dict[str, Tuning], began: float, count: int) -> None:
    states = {each.state for each in ended.values()}
    last = max(_finished(each) for each in ended.values()) - began
    print(
        f"{len(ended)} tunings on {count} workers: {', '.join(sorted(states))} after {last:.0f} s"
    )
    for name, ids in asked.items():
        waited = sorted(_started(ended[each]) - began for each in ids)
        done = max(_finished(ended[each]) for each in ids) - began
        print(
            f"  {name:6s} {len(ids):3d} tunings: began after {_range(waited)} s "
            f"(median {median(waited):.0f}), the last ended after {done:.0f} s"
        )


def _started(tuning: Tuning) -> float:
    assert tuning.started_at is not None
    return tuning.started_at.timestamp()


def _finished(tuning: Tuning) -> float:
    assert tuning.finished_at is not None
    return tuning.finished_at.timestamp()


def _range(seconds: Sequence[float]) -> str:
    return f"{seconds[0]:.0f} to {seconds[-1]:.0f}"


if __name__ == "__main__":
    main()
