"""All ranks of a pool: started together, asked together, killed together."""

import math
import queue
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from autosync.cancellation import check_cancelled
from autosync.trials.commands import (
    Answer,
    Command,
    CommandFailed,
    GroupJoined,
    JoinGroup,
    StartWorker,
    WorkerStarted,
    command_line,
)
from autosync.trials.contract import (
    LEAVES_RANKS_USABLE,
    ErrorKind,
    OnWait,
    TrialError,
    TrialFailed,
    Workload,
)
from autosync.trials.failures import first_cause
from autosync.trials.gpus import local_ranks, refuse_shared_gpus, sharing_words
from autosync.trials.machine import reports_lack_of_memory
from autosync.trials.pool.worker_process import Answers, Place, Worker, WorkerAnswer

START_SECONDS = 600.0
"""Importing torch takes 2 s on a quiet machine, and minutes on a crowded one, or where all ranks
read it for the first time from a network file system."""

SLOW_SECONDS = 30.0
"""Ranks that take longer to start are reported."""

JOIN_SECONDS = 120.0

NAMED_RANKS = 4
"""Of those that do not answer."""

GRACE_SECONDS = 1.0
"""How long after the first bad answer others may still answer: a rank that loses its peer often
fails before the peer's own end is noticed."""

POLL_SECONDS = 0.05

WRITTEN_LINES = 3
WRITTEN_CHARACTERS = 500
"""Of what a command that reached no host wrote, in the message of the error."""


A = TypeVar("A", bound=Answer)


@dataclass
class WorkerGroup:
    """The worker processes of one pool, one a rank.

    host: address of rank 0. share_gpus: whether ranks may share a GPU. environment,
    tuner_configuration: see `StartWorker`. on_wait: receives which rank is slow to start.
    Known once they have started: hosts: identities of their kernels. scaled: whether their
    variables are scaled by the byte scale. sharing: how ranks share GPUs, as reports print it;
    empty where each has its own.
    """

    workload: Workload
    places: Sequence[Place]
    host: str
    workloads: tuple[str, ...] = ()
    share_gpus: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    tuner_configuration: str = ""
    on_wait: OnWait | None = None
    hosts: list[str] = field(default_factory=list, init=False)
    scaled: bool = field(default=False, init=False)
    sharing: str = field(default="", init=False)
    versions: tuple[tuple[str, str], ...] = field(default=(), init=False)
    _answers: Answers = field(default_factory=queue.Queue, init=False)
    _workers: list[Worker] = field(default_factory=list, init=False)
    _heard_once: set[int] = field(default_factory=set, init=False)

    def start(self) -> None:
        """Bring the ranks together.

        Raises:
            TrialFailed: a worker could not start.
            NotSupported: the command that starts one does not exist; or ranks have the same GPU,
                and may not (`refuse_shared_gpus`).
        """
        deadline = time.monotonic() + START_SECONDS
        for rank, place in enumerate(self.places):
            check_cancelled()
            self._workers.append(place.start(rank, self.workloads, self._answers))
        on_hosts = local_ranks([worker.where for worker in self._workers])
        for worker, local_rank in zip(self._workers, on_hosts, strict=True):
            start = StartWorker(
                worker.rank,
                local_rank,
                self.host,
                self.workload,
                self.environment,
                self.tuner_configuration,
            )
            worker.send(command_line(start))
        started = self._collect(WorkerStarted, deadline, time.monotonic() + SLOW_SECONDS)
        self.scaled = all(answer.scaled for answer in started)
        gpus = [answer.gpu for answer in started]
        nccl_hosts = [answer.nccl_host for answer in started]
        refuse_shared_gpus(gpus, nccl_hosts, self.share_gpus, self.workload.backend)
        self.sharing = sharing_words(gpus, [answer.mps for answer in started])
        self._send_to_all(JoinGroup(self.host, started[0].port, len(self._workers), self._peer()))
        joined = self._collect(GroupJoined, time.monotonic() + JOIN_SECONDS)
        self.hosts = [answer.host for answer in joined]
        shared = {"gpu_sharing": self.sharing} if self.sharing else {}
        self.versions = tuple(sorted((_of_all(joined) | shared).items()))

    def ask(self, command: Command, answered_by: type[A], timeout_seconds: float) -> list[A]:
        """One command to every rank; their answers in rank order.

        Raises:
            TrialFailed: a rank failed, died, or did not answer in time.
        """
        deadline = time.monotonic() + timeout_seconds
        self._send_to_all(command)
        return self._collect(answered_by, deadline)

    def has_lost_a_rank(self) -> bool:
        """Whether one has ended since the last command: in between nothing else arrives."""
        return not self._answers.empty()

    def _send_to_all(self, command: Command) -> None:
        line = command_line(command)
        for worker in self._workers:
            worker.send(line)

    def begin_kill(self) -> None:
        """Send the kills; `kill` follows."""
        for worker in self._workers:
            worker.begin_kill()

    def kill(self) -> None:
        self.begin_kill()
        for worker in self._workers:
            worker.kill()

    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def _peer(self) -> str:
        """A host other than rank 0's; empty where there is none."""
        first = self._workers[0].where
        return next((worker.where for worker in self._workers if worker.where != first), "")

    def _collect(self, answered_by: type[A], deadline: float, slow_at: float = math.inf) -> list[A]:
        """slow_at: when ranks that have not answered are reported."""
        good: dict[int, A] = {}
        bad: list[WorkerAnswer] = []
        while silent := self._others({*good, *(answer.rank for answer in bad)}):
            received = self._next(min(deadline, slow_at))
            if received is None and slow_at < deadline:
                slow_at = math.inf
                self._report_slow(silent)
                continue
            if received is None:
                break
            if received.answer is not None:
                self._heard_once.add(received.rank)
            if isinstance(received.answer, answered_by):
                good[received.rank] = received.answer
            else:
                bad.append(received)
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if bad:
            raise self._failure(bad, silent)
        if silent:
            raise self._silence(silent)
        return [good[rank] for rank in sorted(good)]

    def _next(self, deadline: float) -> WorkerAnswer | None:
        """The next answer; None when there is none by the deadline. Raises Cancelled meanwhile."""
        while True:
            check_cancelled()
            rest = deadline - time.monotonic()
            if rest <= 0:
                return None
            try:
                return self._answers.get(timeout=min(rest, POLL_SECONDS))
            except queue.Empty:
                continue

    def _others(self, heard: set[int]) -> list[int]:
        """The ranks that are not among those."""
        return [worker.rank for worker in self._workers if worker.rank not in heard]

    def _silence(self, ranks: list[int]) -> TrialFailed:
        tail = self._workers[ranks[0]].stderr_tail()
        when = "in time" if ranks[0] in self._heard_once else f"within {START_SECONDS:g} s"
        text = f"no answer {when} from {self._named(ranks, tail)}"
        return TrialFailed(TrialError("timeout", text, tail))

    def _report_slow(self, ranks: list[int]) -> None:
        if self.on_wait is not None:
            silent = self._named(ranks, self._workers[ranks[0]].stderr_tail())
            self.on_wait(f"waits for ranks to start: no answer yet from {silent}")

    def _named(self, ranks: list[int], tail: str) -> str:
        """Ranks that have not answered. tail: of what the first one's command wrote."""
        who = ", ".join(self._who(rank) for rank in ranks[:NAMED_RANKS])
        more = len(ranks) - NAMED_RANKS
        others = f" and {more} more" if more > 0 else ""
        return f"{who}{others}.{self._written(ranks[0], tail)}"

    def _written(self, rank: int, tail: str) -> str:
        """What the command that should start a worker wrote, as long as that has never answered:
        ssh, for instance, says why it cannot reach the host."""
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        if rank in self._heard_once or not lines:
            return ""
        return f" It wrote: {' / '.join(lines[-WRITTEN_LINES:])[-WRITTEN_CHARACTERS:]}"

    def _who(self, rank: int) -> str:
        """The rank with its host, and with the command as long as it has never answered."""
        worker = self._workers[rank]
        host = f" on host {worker.where!r}" if worker.where else ""
        command = f" (started by `{worker.command}`)" if rank not in self._heard_once else ""
        return f"rank {rank}{host}{command}"

    def _failure(self, bad: list[WorkerAnswer], silent: list[int]) -> TrialFailed:
        """A rank that died, else the first cause among what the ranks answered."""
        dead = [received.rank for received in bad if received.answer is None]
        if dead:
            return TrialFailed(self._death(dead[0]))
        failures = {received.rank: _as_failure(received.answer) for received in bad}
        rank, error = first_cause(failures)
        text = error.message
        if silent:  # its peer's host may have gone
            text += f" (No answer from {', '.join(self._who(other) for other in silent)}.)"
        error = TrialError(error.kind, text, self._workers[rank].stderr_tail())
        unharmed = [one for one in failures.values() if one.kind in LEAVES_RANKS_USABLE]
        return TrialFailed(error, ranks_usable=len(unharmed) == len(self._workers))

    def _death(self, rank: int) -> TrialError:
        worker, who = self._workers[rank], self._who(rank)
        ended = worker.exit()
        tail = worker.stderr_tail()
        written = self._written(rank, tail)
        if ended.status is None:
            return TrialError("crashed", f"{who} was lost.{written}", tail)
        killed = ended.status in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if killed and ended.for_memory:
            return TrialError("out_of_memory", f"{who} was killed by the kernel.", tail)
        # a thread that lacks memory may abort the process while another reports the same
        kind: ErrorKind = "out_of_memory" if reports_lack_of_memory(tail) else "crashed"
        return TrialError(kind, f"{who} ended with status {ended.status}.{written}", tail)


def _as_failure(answer: Answer | None) -> CommandFailed:
    """An answer to another command than was asked is a failure, too."""
    if isinstance(answer, CommandFailed):
        return answer
    return CommandFailed("crashed", f"it answered {type(answer).__name__} out of order.")


def _of_all(joined: Sequence[GroupJoined]) -> dict[str, str]:
    """The ranks' versions; of one in which hosts differ, each."""
    names = sorted({name for answer in joined for name in answer.versions})
    return {
        name: " and ".join(dict.fromkeys(answer.versions.get(name, "none") for answer in joined))
        for name in names
    }
