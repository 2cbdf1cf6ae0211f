"""All ranks of a pool: started together, asked together, killed together."""

import json
import queue
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

from autosync.documents import to_data
from autosync.trials.contract import ErrorKind, TrialError, Workload
from autosync.trials.gpus import local_ranks, refuse_shared_gpus
from autosync.trials.machine import speaks_of_memory
from autosync.trials.pool.worker_process import Answers, Place, Worker, WorkerAnswer

START_SECONDS = 120.0
"""Importing torch takes 2 s on a quiet machine, and many times as long on a crowded one."""

GRACE_SECONDS = 1.0
"""How long after the first bad answer the others may still speak: a rank that loses its peer
often complains before the peer's own end is seen."""

POLL_SECONDS = 0.05


class Failed(Exception):
    """A trial failed; `warm` when every rank refused alike and can go on."""

    def __init__(self, error: TrialError, warm: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.warm = warm


class WorkerGroup:
    """The worker processes of one pool, one a rank.

    cancelled: makes the trial that waits for answers fail; any thread may set it. Nothing else
    here is thread-safe.
    """

    def __init__(
        self,
        workload: Workload,
        placements: Sequence[Place],
        host: str,
        workloads: tuple[str, ...],
        cancelled: threading.Event,
    ) -> None:
        self._cancelled = cancelled
        self._answers: Answers = queue.Queue()
        self._placements = placements
        self._workloads = workloads
        self._workers: list[Worker] = []
        self._spoken: set[int] = set()
        self._host = host
        self._workload = workload
        self._plan: str | None = None
        self.hosts: list[str] = []
        self.scaled = False
        self.versions: tuple[tuple[str, str], ...] = ()

    def start(self) -> None:
        """Bring the ranks together.

        Raises:
            Failed: a worker could not start.
            NotSupported: the command that starts one does not exist; or ranks share a GPU that
                NCCL is to use.
        """
        deadline = time.monotonic() + START_SECONDS
        for rank, placement in enumerate(self._placements):
            self._workers.append(placement.start(rank, self._workloads, self._answers))
        workload = to_data(self._workload)
        places = local_ranks([worker.where for worker in self._workers])
        for worker, local_rank in zip(self._workers, places, strict=True):
            command = {
                "op": "start",
                "id": 0,
                "rank": worker.rank,
                "local_rank": local_rank,
                "host": self._host,
                "workload": workload,
            }
            worker.send(json.dumps(command))
        started = self._collect(deadline)
        self.scaled = all(answer["scaled"] for answer in started)
        if self._workload.backend == "nccl":
            refuse_shared_gpus([answer["gpu"] for answer in started])
        join = {"op": "join", "id": 0, "host": self._host, "world": len(self._workers)}
        self.tell({**join, "port": started[0]["port"], "peer": self._peer()})
        ready = self._collect(deadline)
        self.hosts = [answer["host"] for answer in ready]
        self.versions = tuple(sorted(ready[0]["versions"].items()))

    def prepare(self, bundle: str) -> None:
        """The plan that the next trials run: its document goes along with the first of them."""
        self._plan = bundle

    def run_plan(self, command: dict[str, Any], timeout_seconds: float) -> list[dict[str, Any]]:
        """One pass of the prepared plan on every rank; see `ask`."""
        if self._plan is not None:
            command = {**command, "bundle": self._plan}
            self._plan = None
        return self.ask(command, timeout_seconds)

    def ask(self, command: dict[str, Any], timeout_seconds: float) -> list[dict[str, Any]]:
        """One command to every rank; their answers in rank order.

        Raises:
            Failed: a rank failed, died, or did not answer in time.
        """
        deadline = time.monotonic() + timeout_seconds
        self.tell(command)
        return self._collect(deadline)

    def tell(self, command: dict[str, Any]) -> None:
        line = json.dumps(command)
        for worker in self._workers:
            worker.send(line)

    def kill(self) -> None:
        for worker in self._workers:
            worker.begin_kill()
        for worker in self._workers:
            worker.kill()

    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def _peer(self) -> str:
        """A host other than rank 0's; empty where there is none."""
        first = self._workers[0].where
        return next((worker.where for worker in self._workers if worker.where != first), "")

    def _collect(self, deadline: float) -> list[dict[str, Any]]:
        good: dict[int, dict[str, Any]] = {}
        bad: list[WorkerAnswer] = []
        while len(good) + len({answer.rank for answer in bad}) < len(self._workers):
            answer = self._next(deadline)
            if answer is None:
                break
            if answer.fields is not None:
                self._spoken.add(answer.rank)
            if answer.fields is not None and answer.fields["reply"] != "error":
                good[answer.rank] = answer.fields
            else:
                bad.append(answer)
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        heard = {*good, *(answer.rank for answer in bad)}
        silent = [worker.rank for worker in self._workers if worker.rank not in heard]
        if bad:
            raise self._failure(bad, silent)
        if silent:
            raise self._silence(silent)
        return [good[rank] for rank in sorted(good)]

    def _next(self, deadline: float) -> WorkerAnswer | None:
        """The next answer; None when there is none by the deadline.

        Raises:
            Failed: the trial was cancelled meanwhile.
        """
        while True:
            if self._cancelled.is_set():
                raise Failed(TrialError("cancelled", "the trial was cancelled."))
            rest = deadline - time.monotonic()
            if rest <= 0:
                return None
            try:
                return self._answers.get(timeout=min(rest, POLL_SECONDS))
            except queue.Empty:
                continue

    def _silence(self, ranks: list[int]) -> Failed:
        who = ", ".join(self._who(rank) for rank in ranks)
        text = f"no answer in time from {who}."
        return Failed(TrialError("timeout", text, self._workers[ranks[0]].stderr_tail()))

    def _who(self, rank: int) -> str:
        """The rank with its host, and with the command as long as it has never answered."""
        worker = self._workers[rank]
        host = f" on host {worker.where!r}" if worker.where else ""
        command = f" (started by `{worker.command}`)" if rank not in self._spoken else ""
        return f"rank {rank}{host}{command}"

    def _failure(self, bad: list[WorkerAnswer], silent: list[int]) -> Failed:
        """The first cause among what went wrong: a death, then lack of memory, then a refusal,
        which is a rank's own, then the rest: a crash may be what that did to its peers."""
        dead = [answer.rank for answer in bad if answer.fields is None]
        if dead:
            return Failed(self._death(dead[0]))
        said = [(answer.rank, answer.fields) for answer in bad if answer.fields is not None]
        order = ("out_of_memory", "refused", "crashed")
        rank, first = min(said, key=lambda pair: order.index(pair[1]["kind"]))
        worker = self._workers[rank]
        text = f"rank {rank}: {first['message']}"
        if silent:  # its peer's host may have gone
            text += f" (No answer from {', '.join(self._who(other) for other in silent)}.)"
        error = TrialError(first["kind"], text, worker.stderr_tail())
        alike = len(said) == len(self._workers) and all(f["kind"] == "refused" for _, f in said)
        return Failed(error, warm=alike)

    def _death(self, rank: int) -> TrialError:
        worker, who = self._workers[rank], self._who(rank)
        ending = worker.ending()
        tail = worker.stderr_tail()
        if ending.status is None:
            return TrialError("crashed", f"{who} was lost.", tail)
        killed = ending.status in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if killed and ending.for_memory:
            return TrialError("out_of_memory", f"{who} was killed by the kernel.", tail)
        # a thread that lacks memory may abort the process while another reports the same
        kind: ErrorKind = "out_of_memory" if speaks_of_memory(tail) else "crashed"
        return TrialError(kind, f"{who} ended with status {ending.status}.", tail)
