"""One worker: the contract that a pool needs, and worker processes, started by a prefix or forked,
asked by JSON lines, killed with their group.

They live no longer than the process that started them: each ends at the end of its input, and the
kernel kills those that cannot read it (`ParentDeath`)."""

import contextlib
import fcntl
import math
import os
import queue
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from autosync.errors import InvalidInput, NotSupported
from autosync.trials.commands import Answer, CommandFailed, read_answer
from autosync.trials.gpus import shared_gpu_environment
from autosync.trials.machine import killed_for_memory

STDERR_LINES = 60

STDERR_CHARACTERS = 4000

GRACE_SECONDS = 1.0
"""How long a process that closed its output may take to end."""

ASKED_SECONDS = 5.0
"""How long what reaches another host may take to end what it has started there."""

ASKED_POLL_SECONDS = 0.02

PIPE_SECONDS = 5.0
"""How long the ends of a killed process's pipes are waited for."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Gradients come and go every iteration: without these, each would be mapped, zeroed by the
    # kernel and unmapped again.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31),
    "PYTHONUNBUFFERED": "1",
}


class ParentDeath:
    """The kernel kills a worker when the process that started it ends, however it ends.

    A worker ends by itself at the end of its input, but not while it is stopped or stuck in foreign
    code. So there is a pipe on which nothing is ever written. Its reading end, which the worker
    inherits, is asynchronous: when the writing end closes, the kernel signals the end's owner
    (fcntl(2), F_SETOWN), and the signal is set to SIGKILL, which reaches stopped processes too.

    worker_end: the descriptor that the worker inherits.
    """

    def __init__(self) -> None:
        self.worker_end, held_end = os.pipe()
        self._held_end = os.fdopen(held_end, "wb")

    def arm(self, process_group: int, number: int = signal.SIGKILL) -> None:
        """From now on the group gets that signal when this process ends. One that has ended
        already is left alone."""
        with contextlib.suppress(ProcessLookupError):
            fcntl.fcntl(self.worker_end, fcntl.F_SETOWN, -process_group)
        fcntl.fcntl(self.worker_end, fcntl.F_SETSIG, number)
        fcntl.fcntl(self.worker_end, fcntl.F_SETFL, os.O_ASYNC)
        os.close(self.worker_end)

    def disarm(self) -> None:
        """Nothing of the group lives on. May be called twice."""
        self._held_end.close()


def ending_signal(where: str) -> int:
    """That ends a worker. What reaches another host (`where`) is asked to end: srun and mpirun then
    kill what they have started there, which runs on where they are killed themselves."""
    return signal.SIGTERM if where else signal.SIGKILL


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
        command; False where that is not known: another host, or a kernel that does not count.
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


def worker_arguments(workloads: tuple[str, ...]) -> list[str]:
    """What follows the interpreter on a worker's command line."""
    named = ["--workloads", ",".join(workloads)] if workloads else []
    return ["-m", "autosync.trials.worker.worker_main", *named]


def carried_environment(
    rank: int, interface: str, share_gpus: bool, also: Iterable[tuple[str, str]]
) -> dict[str, str]:
    """What a worker on another host has besides its host's environment.

    interface: that messages pass; empty where it is found out there. also: comes last.
    """
    shared = shared_gpu_environment(rank, interface) if share_gpus else {}
    bound = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    return {**ENVIRONMENT, **shared, **bound, **dict(also)}


class Process(Protocol):
    """What carries a worker's lines: a `subprocess.Popen[str]`, or one that was forked."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> IO[str] | None: ...

    @property
    def stdout(self) -> IO[str] | None: ...

    @property
    def stderr(self) -> IO[str] | None: ...

    def wait(self, timeout: float | None = None) -> int | None: ...


Begin = Callable[[ParentDeath], Process]


class WorkerProcess:
    """A worker that is a child of this process, or behind one that is (ssh, srun), or was forked
    for it.

    where: its host when that is not this machine. shown: the command as messages repeat it. begin:
    starts it, in place of the command.

    Raises:
        NotSupported: the command does not exist.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        answers: Answers,
        where: str = "",
        shown: str = "",
        begin: Begin | None = None,
    ) -> None:
        self.rank = rank
        self.where = where
        self.command = shown or shlex.join(command)
        self._kills_before = killed_for_memory()
        self._asked_at = math.inf  # all ranks at once, so that their waits do not add up
        self._parent_death = ParentDeath()
        self.process: Process = (
            begin(self._parent_death)
            if begin
            else _started(command, environment, where, self.command, self._parent_death)
        )
        self._commands: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._threads = [
            threading.Thread(target=self._write_commands, daemon=True),
            threading.Thread(target=self._read_answers, args=(answers,), daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),  # the last: see `exit`
        ]
        for thread in self._threads:
            thread.start()

    def _write_commands(self) -> None:
        """On a thread of its own: a worker that is stopped reads nothing, and a full pipe must
        not block the thread that waits for its answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            while (line := self._commands.get()) is not None:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()

    def _read_answers(self, answers: "Answers") -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                answer = _answer(line)
                if answer is None:  # a banner of what reaches the host
                    self._stderr.append(line[:STDERR_CHARACTERS])
                else:
                    answers.put(WorkerAnswer(self.rank, answer))
        finally:
            answers.put(WorkerAnswer(self.rank, None))

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._stderr.append(line[:STDERR_CHARACTERS])

    def send(self, line: str) -> None:
        self._kills_before = killed_for_memory()
        self._commands.put(line)

    def stderr_tail(self) -> str:
        return "".join(self._stderr)[-STDERR_CHARACTERS:]

    @property
    def pid(self) -> int:
        return self.process.pid

    def exit(self) -> WorkerExit:
        try:
            status: int | None = self.process.wait(timeout=GRACE_SECONDS)
            self._threads[-1].join(GRACE_SECONDS)  # what it wrote last may say why
        except subprocess.TimeoutExpired:
            status = None  # it closed its output and lives on
        before, now = self._kills_before, killed_for_memory()
        counted = before is not None and now is not None and now > before
        return WorkerExit(status, for_memory=counted and not self.where)

    def begin_kill(self) -> None:
        if self.where and self._asked_at < math.inf:
            return  # asked twice, mpirun would leave at once what it has started
        self._asked_at = time.monotonic()
        self._signal(ending_signal(self.where))

    def _signal(self, number: int) -> bool:
        """Whether a process of the group could get it; 0 only asks that."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def kill(self) -> None:
        """A process that has left the group, such as ssh's connection in the background
        (ControlPersist), may hold an end of a pipe for hours: what reads or writes the other end is
        then left to itself."""
        self.begin_kill()
        if self.where:
            until = self._asked_at + ASKED_SECONDS
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(0.0, until - time.monotonic()))
            while self._signal(0) and time.monotonic() < until:
                time.sleep(ASKED_POLL_SECONDS)  # a script may have ended before its srun
            self._signal(signal.SIGKILL)
        self.process.wait()
        self._parent_death.disarm()
        self._commands.put(None)
        streams = (self.process.stdin, self.process.stdout, self.process.stderr)
        for thread, stream in zip(self._threads, streams, strict=True):
            thread.join(PIPE_SECONDS)
            if stream is not None and not thread.is_alive():
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _answer(line: str) -> Answer | None:
    """None where the line is no answer; a damaged one counts as the worker's failure."""
    try:
        return read_answer(line)
    except InvalidInput as error:
        return CommandFailed("crashed", f"an answer arrived damaged: {error.message}")


def _started(
    command: Sequence[str],
    environment: Mapping[str, str],
    where: str,
    shown: str,
    parent_death: ParentDeath,
) -> "subprocess.Popen[str]":
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="backslashreplace",  # programs on the way may write anything
            env=dict(environment),
            start_new_session=True,
            pass_fds=(parent_death.worker_end,),
        )
    except OSError as error:
        parent_death.disarm()
        os.close(parent_death.worker_end)
        host = f" for host {where!r}" if where else ""
        raise NotSupported(
            f"the worker{host} could not be started: {error.strerror}: `{shown}`.",
            thing="command",
            value=command[0],
            remedy="Install that program, or correct the launcher's prefix.",
        ) from None
    parent_death.arm(process.pid, ending_signal(where))
    return process
