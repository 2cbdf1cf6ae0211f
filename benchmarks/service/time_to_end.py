"""How long a tuning takes to end in each of its phases, by each way of asking for it.

    python -m benchmarks.service.time_to_end [--model resnet50] [--minutes 12] [--only PHASE ...]

Ways: a cancellation while a worker has it, SIGTERM to that worker, Ctrl-C to `autosync tune`,
Ctrl-C to `autosync serve` while somebody follows the tuning. Timed is from the request until the
database says how the tuning ended, and until the process that was asked, and all that it had
started, is gone (after a cancellation the worker stays). One database serves all ends; a phase that
is not reached in START_SECONDS is passed over, a process that has not ended in END_SECONDS is
killed and told as such, and no end begins after --minutes. Exit status 1 where something stayed.
"""

import argparse
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from autosync.api.db import Database, connect, migrate
from autosync.api.db.tables import TuningRow
from autosync.api.engine import job_queue
from autosync.api.engine.tuning_request import TuningRequest, at_scales
from autosync.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.environment import DATABASE_URL_VARIABLE, PASSED_VARIABLE
from autosync.models import bundled
from autosync.profiling import estimate_profile
from benchmarks.service.phase_scenes import SCENES, Event, PhaseScene, events_of, prepared

CLUSTER = "example-4x1"
WAYS = ("cancel", "SIGTERM to a worker", "Ctrl-C in tune", "Ctrl-C in serve")
MARK = ("AUTOSYNC_TIME_TO_END", secrets.token_hex(8))
"""In the environment of all that is started here, so that what stays is found."""
START_SECONDS = 60.0
END_SECONDS = 20.0
POLL_SECONDS = 0.02


@dataclass
class EndTimes:
    """told: seconds until the database says how it ended. gone: until nothing is left, too; both
    None where END_SECONDS were not enough. note: why there is no figure."""

    way: str
    phase: str
    told: float | None = None
    gone: float | None = None
    note: str = ""

    def __str__(self) -> str:
        if self.note:
            return f"{self.phase:11} {self.way:20} {self.note}"
        told, gone = (
            f"> {END_SECONDS:.0f}" if s is None else f"{s:.2f}" for s in (self.told, self.gone)
        )
        late = "" if self.gone is not None and self.gone <= 2 else "  more than 2 s"
        return f"{self.phase:11} {self.way:20} told {told:>5} s, gone {gone:>5} s{late}"


@dataclass
class EndBenchmark:
    """One database, whose tunings come one after another."""

    url: str
    database: Database
    domain: Domain
    folder: Path
    worker: "subprocess.Popen[bytes] | None" = None
    cold: int = field(default=0)

    def timed(self, scene: PhaseScene, way: str) -> EndTimes:
        found = EndTimes(way, scene.name)
        with scene.begun():
            request = at_scales(TuningRequest(self.domain), None, None)
            tuning_id = prepared(self.database, scene, self.domain, request)
            with self.process(scene, way, tuning_id) as asked:
                if not until(lambda: self.reached(scene, tuning_id, asked), START_SECONDS):
                    found.note = f"not reached; it told {self.events(tuning_id)[-1:]}"
                else:
                    time.sleep(scene.pause_seconds)
                    if scene.gone and any(kind == scene.gone for kind, _ in self.events(tuning_id)):
                        found.note = "was over before the end was asked for"
                    else:
                        self.end(found, tuning_id, asked)
        with contextlib.suppress(Exception):  # it may have ended by itself
            job_queue.cancel(self.database, tuning_id)
        return found

    def events(self, tuning_id: str) -> list[Event]:
        return events_of(self.database, tuning_id)

    def reached(self, scene: PhaseScene, tuning_id: str, asked: "subprocess.Popen[bytes]") -> bool:
        if asked.poll() is not None:
            return False
        ranks = sum("fork_server" in words(pid) for pid in marked_processes())
        # the process that ranks are forked from bears their command line, and so do they
        return scene.reached(self.events(tuning_id), max(0, ranks - 1))

    @contextmanager
    def process(
        self, scene: PhaseScene, way: str, tuning_id: str
    ) -> "Iterator[subprocess.Popen[bytes]]":
        """What runs the tuning: a worker that stays for the next one where this is cancelled, else
        a process of its own. Nothing of it is left behind."""
        if way == "cancel" and not scene.cold_kernels:
            if self.worker is None or self.worker.poll() is not None:
                self.worker = self.started("worker")
            yield self.worker
            if (left := self.started_by(self.worker)) and not until(
                lambda: not self.started_by(self.worker), END_SECONDS
            ):
                kill_all(left)
            return
        self.stop_worker()
        commands = {
            "cancel": ("worker",),
            "SIGTERM to a worker": ("worker",),
            "Ctrl-C in tune": ("tune", "--resume", tuning_id, "-o", str(self.folder / "best.json")),
            "Ctrl-C in serve": ("serve", "--port", str(port := free_port())),
        }
        environment = {}
        if scene.cold_kernels:
            self.cold += 1
            environment["NUMBA_CACHE_DIR"] = str(self.folder / f"cold{self.cold}")
        process = self.started(*commands[way], **environment)
        try:
            with self.followed(port, tuning_id) if "serve" in way else contextlib.nullcontext():
                yield process
        finally:
            process.kill()
            process.wait()
            kill_all(marked_processes())

    def started(self, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
        marked = {MARK[0]: MARK[1], PASSED_VARIABLE: MARK[0], DATABASE_URL_VARIABLE: self.url}
        return subprocess.Popen(
            [sys.executable, "-m", "autosync.api.cli.main", *arguments],
            env={**os.environ, **marked, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=heed_control_c,
        )

    @contextmanager
    def followed(self, port: int, tuning_id: str) -> Iterator[None]:
        """Somebody has the tuning's page open."""
        place = ("127.0.0.1", port)
        if not until(lambda: listens(place), START_SECONDS):
            raise TimeoutError("the service did not listen")
        with socket.create_connection(place) as follower:
            path = f"/v1/tunings/{tuning_id}/events"
            follower.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            yield

    def end(self, found: EndTimes, tuning_id: str, asked: "subprocess.Popen[bytes]") -> None:
        stays = found.way == "cancel"
        ended = "cancelled" if stays else "queued"
        began = time.monotonic()
        match found.way:
            case "cancel":
                job_queue.cancel(self.database, tuning_id)
            case "SIGTERM to a worker":
                asked.send_signal(signal.SIGTERM)
            case _:
                asked.send_signal(signal.SIGINT)
        if until(lambda: self.state(tuning_id) == ended, END_SECONDS):
            found.told = time.monotonic() - began
            rest = END_SECONDS - found.told
            if until(lambda: (stays or asked.poll() is not None) and not self.left(asked), rest):
                found.gone = time.monotonic() - began

    def left(self, asked: "subprocess.Popen[bytes]") -> list[int]:
        return [pid for pid in marked_processes() if pid != asked.pid]

    def started_by(self, worker: "subprocess.Popen[bytes] | None") -> list[int]:
        return self.left(worker) if worker else []

    def state(self, tuning_id: str) -> str:
        with self.database.reading() as session:
            return session.get_one(TuningRow, tuning_id).state

    def stop_worker(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()
            kill_all(marked_processes())
            self.worker = None


def until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(POLL_SECONDS)
    return False


def heed_control_c() -> None:
    """What a shell starts in the background ignores it, and so would all that is started here."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def marked_processes() -> list[int]:
    """All that live with `MARK` in their environment."""
    mark, found = "=".join(MARK).encode(), []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended, or belongs to someone else
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def words(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def listens(place: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(place):
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--only", nargs="*", choices=[scene.name for scene in SCENES])
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=WAYS)
    asked = parser.parse_args()
    graph, cluster = bundled(asked.model, None), load_cluster(CLUSTER)
    domain = Domain(graph, cluster, estimate_profile(graph, cluster.fastest_device_type))
    scenes = [scene for scene in SCENES if not asked.only or scene.name in asked.only]
    deadline = time.monotonic() + 60 * asked.minutes
    stayed = False
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/ends.db"
        migrate(url)
        runs = EndBenchmark(url, connect(url), domain, Path(folder))
        try:
            for way in asked.ways:
                for scene in scenes:
                    if time.monotonic() > deadline:
                        print(f"{scene.name:11} {way:20} no time was left")
                        continue
                    found = runs.timed(scene, way)
                    stayed |= not found.note and found.gone is None
                    print(found, flush=True)
        finally:
            runs.stop_worker()
            runs.database.close()
    sys.exit(stayed)


if __name__ == "__main__":
    main()
