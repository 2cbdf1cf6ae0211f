"""The process under test of `benchmarks.faults.soak`: claims the tuning, opens a testbed and runs
what has no trial yet, under the faults that the keys name. Says what happens as JSON lines.

python -m benchmarks.faults.soak_launcher URL TUNING KILLED...

KILLED: the trials during which a launcher was killed before; they run without a fault.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autosync.api.db import Database, connect
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import DatabaseStore
from autosync.api.engine.job_queue import Claim
from autosync.api.engine.submission import load_request
from autosync.bundle import Bundle
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.tuning_loop import run_pending
from autosync.trials.contract import TrialError, TrialRequest, TrialResult, Workload
from autosync.trials.launchers.local_launcher import LocalPlace
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.pool.process_pool import ProcessPool

WORKLOADS = ("faulty=benchmarks.faults.faulty:build_faulty",)
PLAIN = "plain"
LAUNCHER, LINK, REFUSED = "launcher", "link", "refused"
"""Faults that come from outside the worker; the others are the workload's own."""

BYTE_SCALE = 1 / 16
SETTLED_SECONDS = 0.3
"""From the beginning of a trial until a fault from outside: on warm workers in the middle of it."""


@dataclass(frozen=True, slots=True)
class SoakPool:
    """A pool whose trials suffer what their keys say. killed: see above."""

    inner: ProcessPool
    killed: Sequence[str]

    @property
    def description(self) -> str:
        return self.inner.description

    def run(self, request: TrialRequest) -> TrialResult:
        result = replace(self._suffer(request), key=request.key)
        say(returned=request.key, **in_words(result.error))
        return result

    def close(self) -> None:
        self.inner.close()

    def _suffer(self, request: TrialRequest) -> TrialResult:
        number, _, fault = request.key.rpartition("/")
        kind, _, rank = fault.partition(":")
        hanging = replace(request, key=f"{number}/hang:{rank}")
        sound = replace(request, key=f"{number}/sound")
        if kind == REFUSED:
            return self.inner.run(replace(request, bundle=_with_another_name(request)))
        if kind == LINK:
            result = self.inner.run(request)
            self._mend_link(int(rank))
            return result
        if kind == LAUNCHER and request.key not in self.killed:
            self._soon(lambda: say(kill=request.key))
            return self.inner.run(hanging)
        return self.inner.run(request if kind != LAUNCHER else sound)

    def _soon(self, then: Callable[[], None]) -> None:
        """When the next trial runs, on a thread of its own."""

        def wait() -> None:
            while not self.inner.busy:
                time.sleep(0.01)
            time.sleep(SETTLED_SECONDS)
            then()

        threading.Thread(target=wait, daemon=True).start()

    def _mend_link(self, rank: int) -> None:
        place = self.inner.places[rank]
        assert isinstance(place, LocalPlace)
        subprocess.run([*place.prefix, "ip", "link", "set", "eth0", "up"], check=True)


def _with_another_name(request: TrialRequest) -> Bundle:
    first, *others = request.bundle.variables
    return replace(request.bundle, variables=(replace(first, name="another"), *others))


def in_words(error: TrialError | None) -> dict[str, str]:
    if error is None:
        return {"kind": "ok", "reason": ""}
    return {"kind": error.kind, "reason": f"{error.message}\n{error.stderr_tail}"}


def say(**fields: str) -> None:
    print(json.dumps(fields), flush=True)


def claim_anew(database: Database, tuning_id: str) -> Claim:
    """The tuning, whose last claim was not given back; under a lease that ends at once."""
    held = job_queue.claim(database, "soak", lease_seconds=0.0, tuning_id=tuning_id)
    if held is None:
        raise SystemExit(f"tuning {tuning_id} cannot be claimed")
    return held


def main(url: str, tuning_id: str, *killed: str) -> None:
    database = connect(url)
    held = claim_anew(database, tuning_id)
    store = DatabaseStore(database, tuning_id, held.fence)
    with database.reading() as session:
        request = load_request(session, tuning_id)
    workload = Workload(request.domain, "faulty", byte_scale=BYTE_SCALE)
    launcher = TestbedLauncher(workloads=WORKLOADS, repeats=0, check=False)
    pool = SoakPool(launcher.open(workload), killed)
    try:
        run_pending(request.domain, pool, store, request.settings, _ignore)
    finally:
        pool.close()
        database.close()


def _ignore(event: TuningEvent) -> None:
    """The store has what counts."""


if __name__ == "__main__":
    main(*sys.argv[1:])
