"""A worker process behind a Ray actor."""

import contextlib
import queue
import sys
import threading
from collections.abc import Mapping
from typing import Any

from autosync.environment import allowed_environment
from autosync.trials.commands import Answer
from autosync.trials.pool.worker_process import (
    Answers,
    WorkerAnswer,
    WorkerExit,
    WorkerProcess,
    worker_arguments,
)

LISTEN_SECONDS = 5.0
"""How long one call to an actor waits for the worker's next answer."""

KILL_SECONDS = 5.0
LOST_SECONDS = 20.0
"""How long a call may stay unanswered: an actor on a node that has gone never answers."""


class Relay(WorkerProcess):
    """The actor: a worker process on its node, whose answers are fetched by calls."""

    def __init__(self, rank: int, workloads: tuple[str, ...], carried: Mapping[str, str]) -> None:
        self._answers: Answers = queue.Queue()
        command = [sys.executable, *worker_arguments(workloads)]
        super().__init__(rank, command, {**allowed_environment(), **carried}, self._answers)

    def process_id(self) -> int:
        return self.pid

    def listen(self, seconds: float) -> list[Answer | None]:
        """The worker's next answer (None: it has ended); empty where none comes in time."""
        try:
            return [self._answers.get(timeout=seconds).answer]
        except queue.Empty:
            return []


class RayWorker:
    """A worker behind an actor, as the worker group sees it."""

    def __init__(self, rank: int, where: str, actor: Any, answers: Answers) -> None:
        self.rank = rank
        self.where = where
        self.command = f"a Ray actor on {where}"
        self._actor = actor
        self._killing: Any = None
        self._stopped = threading.Event()
        self._listener = threading.Thread(target=self._listen, args=(answers,), daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Of the worker's process, on its own host."""
        found = self._asked("process_id", -1)
        assert isinstance(found, int)
        return found

    def send(self, line: str) -> None:
        self._actor.send.remote(line)

    def stderr_tail(self) -> str:
        return str(self._asked("stderr_tail", ""))

    def exit(self) -> WorkerExit:
        found = self._asked("exit", WorkerExit(None, False))
        assert isinstance(found, WorkerExit)
        return found

    def begin_kill(self) -> None:
        self._stopped.set()
        self._killing = self._actor.kill.remote()

    def kill(self) -> None:
        """The worker first, by its own actor; then the actor, alive or not."""
        import ray
        from ray.exceptions import RayError

        self.begin_kill()
        self._wait(self._killing, KILL_SECONDS, None)
        with contextlib.suppress(RayError):  # the head has gone
            ray.kill(self._actor)
        self._listener.join(LISTEN_SECONDS)

    def _asked(self, method: str, otherwise: object) -> object:
        return self._wait(getattr(self._actor, method).remote(), LOST_SECONDS, otherwise)

    def _wait(self, reference: Any, seconds: float, otherwise: object) -> object:
        from ray.exceptions import RayError

        try:
            return _get(reference, seconds)
        except RayError:  # the actor or its node has gone
            return otherwise

    def _listen(self, answers: Answers) -> None:
        from ray.exceptions import RayError

        while not self._stopped.is_set():
            try:
                heard = _get(self._actor.listen.remote(LISTEN_SECONDS), None)
            except RayError:
                heard = [None]
            for answer in heard:
                if not self._stopped.is_set():
                    answers.put(WorkerAnswer(self.rank, answer))
            if None in heard:
                return


def _get(reference: Any, seconds: float | None) -> Any:
    import ray

    return ray.get(reference, timeout=seconds)
