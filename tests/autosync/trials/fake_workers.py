"""Workers that are none: they answer at once, what a test says."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autosync.trials.commands import (
    Answer,
    Command,
    CommandFailed,
    GroupJoined,
    JoinGroup,
    MeasuredIterations,
    PassDone,
    RunPass,
    StartWorker,
    WorkerStarted,
    read_command,
)
from autosync.trials.contract import ErrorKind, Workload
from autosync.trials.pool.process_pool import REPEATS, ProcessPool
from autosync.trials.pool.worker_process import Answers, WorkerAnswer, WorkerExit
from tests.autosync.trials.strategies import small_domain

SENT_BYTES = 70
"""Of each rank's NIC in an iteration."""


@dataclass
class FakeWorkers:
    """Two ranks.

    passes: what is measured, one after another: (seconds an iteration, outside load).
    hosts: of the ranks. gpus: UUIDs of theirs. mps: whether they run by CUDA MPS.
    errors: the kind of error with which a rank answers each trial.
    environments, tuner_configurations: that ranks were started with, in order. versions: of ranks.
    refusals: what starting rank 1 raises, one after another.
    """

    passes: Sequence[tuple[float, float]] = ()
    hosts: tuple[str, str] = ("here", "here")
    versions: Sequence[dict[str, str]] = ({}, {})
    gpus: tuple[str, str] = ("", "")
    mps: bool = False
    environments: list[dict[str, str]] = field(default_factory=list)
    tuner_configurations: list[str] = field(default_factory=list)
    errors: dict[int, ErrorKind] = field(default_factory=dict)
    refusals: list[Exception] = field(default_factory=list)
    workers: list["FakeWorker"] = field(default_factory=list)

    def pool(self, **others: Any) -> ProcessPool:
        fields: dict[str, Any] = {"host": "", "links": "loopback", **others}
        return ProcessPool(
            workload=Workload(small_domain(), byte_scale=0.5),
            place="fake workers",
            places=(FakePlace(self, 0), FakePlace(self, 1)),
            repeats=REPEATS,  # passes of fake workers take no time
            **fields,
        )


@dataclass
class FakeWorker:
    group: FakeWorkers
    rank: int
    answers: Answers
    where: str = ""
    command: str = "fake"
    pid: int = 0
    trials: int = 0
    killed: bool = False
    slowdowns: list[float] = field(default_factory=list)

    def send(self, line: str) -> None:
        self.answers.put(WorkerAnswer(self.rank, self.answer(read_command(line))))

    def answer(self, command: Command) -> Answer:
        match command:
            case StartWorker():
                self.group.environments.append(command.environment)
                self.group.tuner_configurations.append(command.tuner_configuration)
                gpu, host = self.group.gpus[self.rank], f"autosync-{self.rank}"
                return WorkerStarted(0, True, gpu, host, self.group.mps)
            case JoinGroup():
                return GroupJoined(self.group.hosts[self.rank], self.group.versions[self.rank])
            case RunPass():
                return self.run_pass(command)
        raise AssertionError(f"not expected: {command}")

    def run_pass(self, command: RunPass) -> Answer:
        self.trials += 1
        self.slowdowns.append(command.compute_slowdown)
        if self.rank in self.group.errors:
            kind = self.group.errors[self.rank]
            return CommandFailed(kind, f"{kind} on purpose")
        seconds, load = self.group.passes[self.trials - 1]
        count = command.warmup + command.iterations
        return PassDone(
            measured=MeasuredIterations(
                starts=tuple(seconds * number for number in range(count + 1)),
                finished=seconds * count,
                cpu_seconds=0.0,
                busy_seconds=load,
                total_seconds=1.0,
                sent_bytes=SENT_BYTES * command.iterations,
            ),
            host=self.group.hosts[self.rank],
            peak_memory_bytes=1,
            digest=1.0,
        )

    def stderr_tail(self) -> str:
        return ""

    def exit(self) -> WorkerExit:
        return WorkerExit(None, False)

    def begin_kill(self) -> None:
        self.killed = True

    def kill(self) -> None:
        self.killed = True


@dataclass
class FakePlace:
    group: FakeWorkers
    node: int

    def start(self, rank: int, workloads: tuple[str, ...], answers: Answers) -> FakeWorker:
        if rank == 1 and self.group.refusals:
            raise self.group.refusals.pop(0)
        worker = FakeWorker(self.group, rank, answers)
        self.group.workers.append(worker)
        return worker
