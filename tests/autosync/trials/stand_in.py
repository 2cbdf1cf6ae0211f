"""Workers that are none: they answer at once, what a test says."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autosync.trials.contract import Workload
from autosync.trials.pool.process_pool import ProcessPool
from autosync.trials.pool.worker_process import Answers, WorkerAnswer, WorkerExit
from tests.autosync.trials.strategies import small_domain

SENT_BYTES = 70
"""Of each rank's NIC in an iteration."""


@dataclass
class StandIns:
    """Two ranks.

    passes: what is measured, one after another: (seconds an iteration, outside load).
    hosts: of the ranks. errors: the kind of error with which a rank answers each trial.
    refusals: what starting rank 1 raises, one after another.
    """

    passes: Sequence[tuple[float, float]] = ()
    hosts: tuple[str, str] = ("here", "here")
    errors: dict[int, str] = field(default_factory=dict)
    refusals: list[Exception] = field(default_factory=list)
    workers: list["StandIn"] = field(default_factory=list)

    def pool(self, **others: Any) -> ProcessPool:
        workload = Workload(small_domain(), byte_scale=0.5)
        places = (StandInPlace(self, 0), StandInPlace(self, 1))
        fields: dict[str, Any] = {"host": "", "links": "loopback", **others}
        return ProcessPool(workload, "stand-ins", places, **fields)


@dataclass
class StandIn:
    ins: StandIns
    rank: int
    answers: Answers
    where: str = ""
    command: str = "stand-in"
    pid: int = 0
    trials: int = 0
    killed: bool = False

    def send(self, line: str) -> None:
        self.answers.put(WorkerAnswer(self.rank, self.obey(json.loads(line))))

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["op"]:
            case "start":
                return {"reply": "store", "port": 0, "scaled": True, "gpu": ""}
            case "join":
                return {"reply": "ready", "host": self.ins.hosts[self.rank], "versions": {}}
        self.trials += 1
        if self.rank in self.ins.errors:
            kind = self.ins.errors[self.rank]
            return {"reply": "error", "kind": kind, "message": f"{kind} on purpose"}
        seconds, load = self.ins.passes[self.trials - 1]
        count = command["warmup"] + command["iterations"]
        return {
            "reply": "trial",
            "starts": [seconds * number for number in range(count + 1)],
            "finished": seconds * count,
            "digest": 1.0,
            "cpu_seconds": 0.0,
            "busy_seconds": load,
            "total_seconds": 1.0,
            "peak_memory_bytes": 1,
            "sent_bytes": SENT_BYTES * command["iterations"],
        }

    def stderr_tail(self) -> str:
        return ""

    def ending(self) -> WorkerExit:
        return WorkerExit(None, False)

    def begin_kill(self) -> None:
        self.killed = True

    def kill(self) -> None:
        self.killed = True


@dataclass
class StandInPlace:
    ins: StandIns
    node: int

    def start(self, rank: int, workloads: tuple[str, ...], answers: Answers) -> StandIn:
        if rank == 1 and self.ins.refusals:
            raise self.ins.refusals.pop(0)
        worker = StandIn(self.ins, rank, answers)
        self.ins.workers.append(worker)
        return worker
