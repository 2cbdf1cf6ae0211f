"""The bounded processes that answer heavy requests: who has one, who waits, and when one is killed.

What parses large documents or predicts holds the interpreter's lock for seconds, takes gigabytes at
worst, and cannot be interrupted. In a process of its own it stalls nobody, and ends with its time,
its memory, or its client.
"""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from threading import Event, Lock
from typing import Any, Literal

from autosync.api.db.database import Database
from autosync.api.engine.service_limits import ServiceLimits, TryLater, how_to_raise
from autosync.api.http.access.access_rules import Access
from autosync.api.http.answer_process import (
    READY,
    ForwardedAnswer,
    ForwardedRequest,
    Setup,
    too_much_memory,
)
from autosync.environment import allowed_environment
from autosync.errors import InvalidInput
from autosync.units import MIB

Lane = Literal["reading", "predicting"]
"""What a process does: it reads documents, or it predicts, which needs compiled kernels."""
PROCESSES: dict[Lane, int] = {"reading": 2, "predicting": 2}
"""At once; each client has one of a lane."""
WAITING: dict[Lane, int] = {"reading": 64, "predicting": 0}
"""Requests of a client that wait for their turn; one more is refused for now."""
WAITING_BYTES = 64 * MIB
"""Of a client's bodies that wait."""
RETRY_SECONDS = 5.0
START_SECONDS = 300.0
"""For Python and its imports on a busy machine."""
KERNEL_SECONDS = 600.0
"""For kernels that no cache has yet: they are compiled once a machine."""
WALL_SECONDS_PER_CPU_SECOND = 3.0
"""How much longer reading may take than its processor seconds, since other work goes first."""
IDLE_SECONDS = 120.0
"""After so long without a request a process ends."""
CHILD = "from autosync.api.http.answer_process import main; main()"
CLIENT_LEFT = 499
"""Of the answer that nobody reads; only the log and the metrics see it."""
UNREAD = ForwardedAnswer(CLIENT_LEFT, [], b"")
OUT_OF_MEMORY = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGKILL)
"""How compiled code ends where memory does, and the kernel where the machine's does."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one answer. time_limit, memory_limit: the names of the operator's limits. wall_seconds:
    after which the process is killed. cpu_seconds: after which the kernel kills it, or None."""

    time_limit: str
    memory_limit: str
    memory_mib: int
    wall_seconds: float
    cpu_seconds: int | None = None


def bounds_of(lane: Lane, limits: ServiceLimits) -> Bounds:
    if lane == "predicting":
        return Bounds(
            "prediction_seconds",
            "prediction_memory_mib",
            limits.prediction_memory_mib,
            limits.prediction_seconds,
        )
    seconds = limits.reading_seconds
    wall_seconds = WALL_SECONDS_PER_CPU_SECOND * seconds
    return Bounds("reading_seconds", "reading_mib", limits.reading_mib, wall_seconds, seconds)


class AnswerProcesses:
    """Of one service. `answer` is called on the event loop; `close` kills all that run.

    access: what the service lets in; its tokens stay here.
    """

    def __init__(
        self, database: Database, access: Access, limits: ServiceLimits, root_path: str = ""
    ):
        self.limits = limits
        self._turns = _Turns()
        self._idle: dict[Lane, list[_Process]] = {"reading": [], "predicting": []}
        self._started: set[_Process] = set()
        # the kernel takes a process along with the thread that started it: these threads stay
        self._threads = ThreadPoolExecutor(sum(PROCESSES.values()), "answers")
        url = database.engine.url.render_as_string(hide_password=False)
        self._setup = Setup(url, replace(access, token=None), limits, root_path, kernels=False)

    async def answer(
        self, lane: Lane, client: str, scope: dict[str, Any], body: bytes
    ) -> ForwardedAnswer:
        """scope: what pickle takes of it. A process whose request is cancelled is killed; one that
        has not begun with it stays for the next.

        Raises:
            InvalidInput: it takes more time or memory than the operator allows.
            TryLater: too many requests of the client, or of all, are being answered.
        """
        bounds = bounds_of(lane, self.limits)
        asked = ForwardedRequest(
            scope, body, bounds.memory_limit, bounds.memory_mib, bounds.cpu_seconds
        )
        async with self._turns.turn(lane, client, len(body)):
            process = self._process_of(lane)
            loop = asyncio.get_running_loop()
            left = Event()
            answering = loop.run_in_executor(self._threads, process.ask, asked, bounds, left)
            try:
                return await asyncio.shield(answering)
            except asyncio.CancelledError:  # the client has left
                left.set()
                answering.add_done_callback(asyncio.Future.exception)  # nobody reads it
                if process.is_ready:
                    process.kill()
                    await asyncio.wait([answering])
                raise  # what compiles kernels goes on: they would be compiled again
            finally:
                self._keep(lane, process)

    def prepare(self, lane: Lane) -> None:
        """Start a process of the lane for who is about to ask, where none waits. Called on the
        event loop; a request that comes before the process is ready waits for it."""
        started = sum(process.lane == lane for process in self._started)
        if not self._idle[lane] and started < PROCESSES[lane]:
            process = self._process_of(lane)
            asyncio.get_running_loop().run_in_executor(self._threads, process.prepare)
            self._keep(lane, process)

    def close(self) -> None:
        """Kill what still answers, and what waits for requests."""
        for process in tuple(self._started):
            process.kill()  # who asks it waits for its end
        for lane in self._idle.values():
            for process in lane:
                process.idle_until.cancel()
                process.end()
        self._threads.shutdown(wait=False)

    def pids(self) -> list[int]:
        """Of the processes that live."""
        return [each.pid for each in self._started if each.pid is not None and each.lives]

    def _process_of(self, lane: Lane) -> "_Process":
        idle = self._idle[lane]
        while idle:
            process = idle.pop()
            process.idle_until.cancel()
            if not process.has_ended:  # the kernel may have ended it meanwhile
                return process
            self._started.discard(process)
        process = _Process(lane, replace(self._setup, kernels=lane == "predicting"))
        self._started.add(process)
        return process

    def _keep(self, lane: Lane, process: "_Process") -> None:
        if not process.lives:
            self._started.discard(process)
            return
        loop = asyncio.get_running_loop()
        process.idle_until = loop.call_later(IDLE_SECONDS, self._end, lane, process)
        self._idle[lane].append(process)

    def _end(self, lane: Lane, process: "_Process") -> None:
        self._idle[lane].remove(process)
        self._started.discard(process)
        asyncio.get_running_loop().run_in_executor(self._threads, process.end)


class _Turns:
    """One request of a client and lane is answered at a time; the others wait here, in order."""

    def __init__(self) -> None:
        self._free = {lane: asyncio.Semaphore(count) for lane, count in PROCESSES.items()}
        self._locks: dict[tuple[Lane, str], asyncio.Lock] = {}
        self._asked: Counter[tuple[Lane, str]] = Counter()
        self._bytes: Counter[tuple[Lane, str]] = Counter()

    @asynccontextmanager
    async def turn(self, lane: Lane, client: str, size_bytes: int) -> AsyncIterator[None]:
        """Raises TryLater where too many of the client, or of the lane, are there already."""
        key = (lane, client)
        busy = WAITING[lane] == 0 and self._free[lane].locked()
        many = self._asked[key] > WAITING[lane]
        large = self._asked[key] > 0 and self._bytes[key] + size_bytes > WAITING_BYTES
        if busy or many or large:
            raise _busy(lane, own=self._asked[key] > 0)
        self._asked[key] += 1
        self._bytes[key] += size_bytes
        try:
            async with self._locks.setdefault(key, asyncio.Lock()), self._free[lane]:
                yield
        finally:
            self._asked[key] -= 1
            self._bytes[key] -= size_bytes
            if not self._asked[key]:
                del self._asked[key], self._bytes[key]
                self._locks.pop(key, None)


def _busy(lane: Lane, own: bool) -> TryLater:
    """own: whether requests of this client are in its way."""
    whose = " of yours" if own else ""
    message = (
        f"another prediction{whose} is under way here."
        if lane == "predicting"
        else f"as many large requests{whose} wait here as may."
    )
    return TryLater(
        message,
        thing="processes",
        remedy="Send it again in some seconds.",
        retry_seconds=RETRY_SECONDS,
    )


@dataclass(eq=False, slots=True)
class _Process:
    """Started by its first request, or before it. Used by one thread at a time; any may `kill`."""

    lane: Lane
    setup: Setup
    pid: int | None = None
    killed: bool = False
    lives: bool = True
    is_ready: bool = False
    idle_until: Any = None
    _process: Any = field(default=None, repr=False)
    _connection: Any = field(default=None, repr=False)
    _starting: Lock = field(default_factory=Lock, repr=False)

    def ask(self, asked: ForwardedRequest, bounds: Bounds, left: Event) -> ForwardedAnswer:
        """Raises as `AnswerProcesses.answer`; after an error the process has ended. left: set where
        nobody waits any longer, after which nothing is asked."""
        answered = False
        try:
            self._start()
            if left.is_set():
                answered = True
                return UNREAD
            self._connection.send_bytes(pickle.dumps(asked))
            answer: ForwardedAnswer = self._received(bounds.wall_seconds)
            answered = not answer.last
            return answer
        except TimeoutError:
            raise _too_slow(bounds) from None
        except (EOFError, OSError):
            raise self._why_ended(bounds) from None
        finally:
            if not answered:
                self.end()

    def prepare(self) -> None:
        """Start it ahead of its first request; one that cannot be started has ended."""
        try:
            self._start()
        except (EOFError, OSError, RuntimeError):
            self.end()

    @property
    def has_ended(self) -> bool:
        return self.killed or (self._process is not None and self._process.poll() is not None)

    def kill(self) -> None:
        """Does not wait for its end: to free gigabytes takes a while."""
        self.killed, self.lives = True, False
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        self.kill()
        if self._process is not None:
            self._process.wait()
            self._connection.close()

    def _start(self) -> None:
        """Returns once it is ready; nothing to do where it is.

        Raises:
            EOFError, OSError: it has ended. RuntimeError: it is not ready in time.
        """
        with self._starting:
            if self._process is None:
                self._begin()
                self._await_ready()

    def _begin(self) -> None:
        self._connection, theirs = Pipe()
        number = str(theirs.fileno())
        environment = allowed_environment(("PG*",)) | {"OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CHILD, number, str(os.getpid())],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C reaches the service, which kills it
            )
        self.pid = self._process.pid
        if self.killed:
            raise EOFError
        self._connection.send_bytes(pickle.dumps(self.setup))

    def _await_ready(self) -> None:
        seconds = KERNEL_SECONDS if self.setup.kernels else START_SECONDS
        try:
            ready = self._received(seconds)
        except TimeoutError:
            raise RuntimeError(f"a process has not started within {seconds:g} s") from None
        assert ready == READY
        self.is_ready = True

    def _received(self, seconds: float) -> Any:
        if not self._connection.poll(seconds):
            raise TimeoutError
        return self._connection.recv()

    def _why_ended(self, bounds: Bounds) -> Exception:
        if self.killed:
            return TryLater(
                "the service is ending.",
                thing="service",
                remedy="Send it again when the service runs.",
                retry_seconds=RETRY_SECONDS,
            )
        status = self._process.wait()
        if status == -signal.SIGXCPU:
            return _too_slow(bounds)
        if status in OUT_OF_MEMORY:
            return too_much_memory(bounds.memory_limit, bounds.memory_mib)
        return RuntimeError(f"a process that answers requests ended with {status}")


def _too_slow(bounds: Bounds) -> InvalidInput:
    if bounds.cpu_seconds is not None:
        return InvalidInput(
            f"reading what this request is about takes more than {bounds.cpu_seconds} processor "
            "seconds.",
            thing=bounds.time_limit,
            value=f"more than {bounds.cpu_seconds}",
            remedy=f"Post a smaller document. {how_to_raise(bounds.time_limit)}",
        )
    return InvalidInput(
        f"this prediction takes more than {bounds.wall_seconds:g} s.",
        thing=bounds.time_limit,
        value=f"more than {bounds.wall_seconds:g}",
        remedy="Ask for fewer proposals or for the simulator `timeline`, or start a tuning "
        f"(POST /v1/tunings), which has the time. {how_to_raise(bounds.time_limit)}",
    )
