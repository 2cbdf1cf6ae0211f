"""What a pool needs to know of a worker, wherever it runs: how to start, ask and end it."""

import queue
from dataclasses import dataclass
from typing import Protocol

from autosync.trials.commands import Answer


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """What a worker answered; `answer` is None when its output ended (it has died)."""

    rank: int
    answer: Answer | None


Answers = queue.Queue[WorkerAnswer]


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How a worker ended. status: None where it is not known (its host is lost).

    for_memory: whether its kernel has killed a process for lack of memory since the worker's last
        command; False where no kernel tells: another host's, or one that does not count.
    """

    status: int | None
    for_memory: bool


class Worker(Protocol):
    """One rank of a worker group, wherever it runs. Its answers go to a queue that all ranks share.

    where: its host, empty for this machine. command: what started it, for error messages.
    """

    @property
    def rank(self) -> int: ...

    @property
    def where(self) -> str: ...

    @property
    def command(self) -> str: ...

    @property
    def pid(self) -> int:
        """The process to look at from outside."""
        ...

    def send(self, line: str) -> None:
        """Hand over one command. A dead worker's is dropped: its end is an answer already."""
        ...

    def stderr_tail(self) -> str: ...

    def exit(self) -> WorkerExit:
        """How it ended, after its last answer."""
        ...

    def begin_kill(self) -> None:
        """Send the kill; `kill` follows."""
        ...

    def kill(self) -> None:
        """End the worker with everything it started; may be called twice."""
        ...


class Place(Protocol):
    """Where one rank runs. node: index of the cluster's node."""

    @property
    def node(self) -> int: ...

    def start(self, rank: int, workloads: tuple[str, ...], answers: Answers) -> Worker:
        """Raises NotSupported when nothing can be started there."""
        ...
