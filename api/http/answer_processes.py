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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from typing import Any, Literal

from autosync.api.db.database import Database
from autosync.api.engine.service_limits import ServiceLimits, TryLater, how_to_raise
from autosync.api.http.access.access_rules import Access
from autosync.api.http.answer_process import (
    ForwardedAnswer,
    ForwardedRequest,
    Setup,
    too_much_memory,
)
from autosync.environment import PREFIX_VARIABLE, RAY_ADDRESS_VARIABLE, allowed_environment
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
SERVICE_VARIABLES = (PREFIX_VARIABLE, RAY_ADDRESS_VARIABLE, "PG*")
"""What a process has besides what trials have: which launchers the service offers, and how it
reaches the database."""
CLIENT_LEFT = 499
"""Of the answer that nobody reads; only the log and the metrics see it."""
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
    """Of one service. Its methods are called on the event loop; `close` ends all that run.

    access: what the service lets in; its tokens stay here.
    """

    def __init__(
        self, database: Database, access: Access, limits: ServiceLimits, root_path: str = ""
    ):
        self.limits = limits
        self._turns = _Turns()
        self._idle: dict[Lane, list[_Process]] = {"reading": [], "predicting": []}
        self._started: list[_Process] = []
        self._closed = False
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
        request = ForwardedRequest(
            scope, body, bounds.memory_limit, bounds.memory_mib, bounds.cpu_seconds
        )
        async with self._turns.turn(lane, client, len(body)):
            process = self._process_of(lane)
            asked = process.ask(request, bounds)
            answering = asyncio.wrap_future(asked)
            try:
                return await asyncio.shield(answering)
            except asyncio.CancelledError:  # the client has left
                if not asked.cancel():  # it has begun
                    process.end()
                    answering.add_done_callback(asyncio.Future.exception)  # nobody reads it
                    await asyncio.wait([answering])
                raise
            finally:
                self._keep(lane, process)

    def prepare(self, lane: Lane) -> None:
        """Start a process of the lane for who is about to ask, where none waits. A request that
        comes before the process is ready waits for it."""
        living = sum(process.lane == lane and process.lives for process in self._started)
        if not self._idle[lane] and living < PROCESSES[lane]:
            self._keep(lane, self._process_of(lane))

    def close(self) -> None:
        """Kill what still answers, and what waits for requests; returns when all have ended."""
        self._closed = True
        for lane in self._idle.values():
            for process in lane:
                process.idle_until.cancel()
            lane.clear()
        wait([process.end() for process in self._started])

    def pids(self) -> list[int]:
        """Of the processes that live."""
        return [each.pid for each in self._started if each.pid is not None and each.lives]

    def _process_of(self, lane: Lane) -> "_Process":
        if self._closed:
            raise _ending()
        idle = self._idle[lane]
        while idle:
            process = idle.pop()
            process.idle_until.cancel()
            if not process.has_ended:  # the kernel may have ended it meanwhile
                return process
            process.end()
        process = _Process(lane, replace(self._setup, kernels=lane == "predicting"))
        self._started = [each for each in self._started if not each.is_over] + [process]
        process.start()
        return process

    def _keep(self, lane: Lane, process: "_Process") -> None:
        if not process.lives:
            process.end()
            return
        loop = asyncio.get_running_loop()
        process.idle_until = loop.call_later(IDLE_SECONDS, self._end, lane, process)
        self._idle[lane].append(process)

    def _end(self, lane: Lane, process: "_Process") -> None:
        self._idle[lane].remove(process)
        process.end()


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


def _ending() -> TryLater:
    return TryLater(
        "the service is ending.",
        thing="service",
        remedy="Send it again when the service runs.",
        retry_seconds=RETRY_SECONDS,
    )


@dataclass(eq=False, slots=True)
class _Process:
    """One thread starts it, asks it and waits for its end. The kernel ends a process with the
    thread that started it, so the thread lives as long. Methods are called on the event loop, and
    do not wait; those with an underscore run in the thread, one after another."""

    lane: Lane
    setup: Setup
    lives: bool = True
    is_ready: bool = False
    idle_until: Any = None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "answers"))
    _process: "subprocess.Popen[bytes] | None" = None
    _connection: Any = field(default=None, repr=False)
    _failure: Exception | None = None
    _ended: "Future[None] | None" = None

    def start(self) -> None:
        """It ends where it cannot be started; the next `ask` then says why."""
        self._thread.submit(self._start)

    def ask(self, request: ForwardedRequest, bounds: Bounds) -> "Future[ForwardedAnswer]":
        """Raises as `AnswerProcesses.answer`; after an error the process has ended. A request that
        is cancelled before the process is ready never reaches it."""
        return self._thread.submit(self._ask, request, bounds)

    def end(self) -> "Future[None]":
        """Kill it. Done when it has ended: to free gigabytes takes a while."""
        if self._ended is None:
            self._ended = self._thread.submit(self._wait)
            self._thread.shutdown(wait=False)  # after that
        self.lives = False
        if self._process is not None:
            self._process.kill()
        return self._ended

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def has_ended(self) -> bool:
        return not self.lives or (self._process is not None and self._process.poll() is not None)

    @property
    def is_over(self) -> bool:
        """Whether it has been waited for, and its thread ends."""
        return self._ended is not None and self._ended.done()

    def _start(self) -> None:
        try:
            if self.lives:
                self._begin()
                self._received(KERNEL_SECONDS if self.setup.kernels else START_SECONDS)
                self.is_ready = True
        except (EOFError, OSError) as error:  # also of its time
            self._failure = error
        finally:
            if not self.is_ready:
                self._wait()

    def _begin(self) -> None:
        self._connection, theirs = Pipe()
        number = str(theirs.fileno())
        environment = allowed_environment(SERVICE_VARIABLES) | {"OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CHILD, number, str(os.getpid())],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C reaches the service, which kills it
            )
        if not self.lives:  # `end` may have come before there was a process to kill
            raise EOFError
        self._connection.send_bytes(pickle.dumps(self.setup))

    def _ask(self, request: ForwardedRequest, bounds: Bounds) -> ForwardedAnswer:
        answered = False
        try:
            if not self.lives:
                raise EOFError
            self._connection.send_bytes(pickle.dumps(request))
            answer: ForwardedAnswer = self._received(bounds.wall_seconds)
            answered = not answer.last
            return answer
        except TimeoutError:
            raise _too_slow(bounds) from None
        except (EOFError, OSError):
            raise self._why_ended(bounds) from self._failure
        finally:
            if not answered:
                self._wait()

    def _received(self, seconds: float) -> Any:
        if not self._connection.poll(seconds):
            raise TimeoutError
        return self._connection.recv()

    def _wait(self) -> None:
        self.lives = False
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._connection.close()

    def _why_ended(self, bounds: Bounds) -> Exception:
        if self._ended is not None:
            return _ending()
        if self._process is None or not self.is_ready:
            return RuntimeError("a process that answers requests did not start")
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
