"""Worker processes: started by a prefix, spoken to by JSON lines, killed with their group."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

STDERR_LINES = 60
STDERR_CHARACTERS = 4000

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Gradients come and go every iteration: without these, each would be mapped, zeroed by the
    # kernel and unmapped again.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31),
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a rank runs: `prefix` goes before the command, the rest tells it how to talk.

    interface: the network interface gloo binds to. node: index of the cluster's node.
    """

    prefix: tuple[str, ...]
    interface: str
    node: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker said; `fields` is None when its output ended (it has died)."""

    rank: int
    fields: dict[str, Any] | None


class WorkerProcess:
    """One rank's process. Its answers go to a queue that all ranks of a pool share."""

    def __init__(
        self, rank: int, placement: Placement, workloads: tuple[str, ...], answers: "Answers"
    ) -> None:
        command = [*placement.prefix, sys.executable, "-m", "autosync.trials.worker"]
        if workloads:
            command += ["--workloads", ",".join(workloads)]
        self.rank = rank
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                **ENVIRONMENT,
                "GLOO_SOCKET_IFNAME": placement.interface,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
            start_new_session=True,
        )
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._threads = [
            threading.Thread(target=self._read_answers, args=(answers,), daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_answers(self, answers: "Answers") -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                answers.put(Answer(self.rank, json.loads(line)))
            except json.JSONDecodeError:
                self._stderr.append(line)
        answers.put(Answer(self.rank, None))

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._stderr.append(line[:STDERR_CHARACTERS])

    def send(self, line: str) -> None:
        """Hand over one command. A dead worker's is dropped: its end is an answer already."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def stderr_tail(self) -> str:
        return "".join(self._stderr)[-STDERR_CHARACTERS:]

    def kill(self) -> None:
        """End the process with everything it started; may be called twice."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


Answers = queue.Queue[Answer]
