"""A process that answers heavy requests, one after another, under limits of its own.

It holds the same application as the service, without the middleware that lets clients in: the
service has done that. `autosync.api.http.answer_processes` starts it with one end of a socket,
sends a `Setup` and then requests, and kills it where one takes too long.
"""

import asyncio
import gc
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from autosync.api.child_process import belong_to
from autosync.errors import InvalidInput
from autosync.units import MIB

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Message

    from autosync.api.engine.service_limits import ServiceLimits
    from autosync.api.http.access.access_rules import Access

READY = "ready"
NICENESS = 10
"""Added to the service's own: trials that run on this machine and the service itself go first."""
LARGEST_ANSWER_BYTES = 64 * MIB
KEPT_MIB = 512
"""A process that holds more than this after an answer ends; the next one starts with little."""
KEPT_DOCUMENT_BYTES = 64 * MIB
"""Of stored documents, as text, whose parsed form is kept for the next request."""
DATA_FIELD = 5
"""Of /proc/self/statm (proc(5)): pages of data and stack."""


@dataclass(frozen=True, slots=True)
class Setup:
    """url: of the database. kernels: whether requests need compiled kernels, which are loaded, or
    compiled where no cache has them, before the first one."""

    url: str = field(repr=False)
    access: "Access"
    limits: "ServiceLimits"
    root_path: str
    kernels: bool


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """scope: of ASGI, without what belongs to the service's process. memory_mib: beyond what the
    process holds already. cpu_seconds: after which the kernel ends the process; None: no limit."""

    scope: dict[str, Any]
    body: bytes = field(repr=False)
    memory_limit: str
    memory_mib: int
    cpu_seconds: int | None


@dataclass(frozen=True, slots=True)
class ForwardedAnswer:
    """last: the process ends after it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = field(repr=False)
    last: bool = False


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    belong_to(int(sys.argv[2]), NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    let_threads_begin()
    gc.disable()  # it would look through modules again and again while they are loaded
    from autosync.api.db.database import connect
    from autosync.api.db.document_store import keep_parsed
    from autosync.api.http.app import application

    setup: Setup = connection.recv()
    keep_parsed(KEPT_DOCUMENT_BYTES)
    app = application(connect(setup.url), setup.access, setup.limits, setup.root_path)
    app.add_exception_handler(MemoryError, _out_of_memory)
    if setup.kernels:
        from autosync.api.engine.prediction_ranking import load_kernels

        load_kernels()
    gc.freeze()
    gc.enable()
    connection.send(READY)
    with asyncio.Runner() as runner:
        while True:
            try:
                asked: ForwardedRequest = connection.recv()
            except EOFError:  # the service has ended
                return
            answer = runner.run(_answered(app, asked))
            _unlimit()
            connection.send(answer)
            if answer.last:
                return


def let_threads_begin() -> None:
    """From now on threads of this process begin without its limit of memory.

    Python waits without end for a thread that has no memory to begin with, so a request for too
    much of it would end with its time, and the answer would name the wrong limit.
    """
    start, starting = Thread.start, Lock()

    def start_unlimited(self: Thread) -> None:
        with starting:
            limited, most = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
            try:
                start(self)  # returns when the thread has begun
            finally:
                resource.setrlimit(resource.RLIMIT_DATA, (limited, most))

    Thread.start = start_unlimited  # type: ignore[method-assign]


def _limit(asked: ForwardedRequest) -> None:
    """Soft limits, so that they can be lifted after the answer."""
    size_bytes = _data_bytes() + asked.memory_mib * MIB
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_lower(size_bytes, most), most))
    if asked.cpu_seconds is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime) + 1 + asked.cpu_seconds
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (_lower(seconds, most), most))


def _unlimit() -> None:
    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_CPU):
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (most, most))


def _lower(wanted: int, most: int) -> int:
    return wanted if most == resource.RLIM_INFINITY else min(wanted, most)


def _data_bytes() -> int:
    return int(_statm()[DATA_FIELD]) * resource.getpagesize()


def _resident_bytes() -> int:
    return int(_statm()[1]) * resource.getpagesize()


def _statm() -> list[str]:
    return Path("/proc/self/statm").read_text().split()


def _out_of_memory(request: "Request", error: Exception) -> "Response":
    from autosync.api.http.problems import refused

    request.app.state.full = True
    asked: ForwardedRequest = request.app.state.asked
    return refused(too_much_memory(asked.memory_limit, asked.memory_mib))


async def _answered(app: "FastAPI", asked: ForwardedRequest) -> ForwardedAnswer:
    """Under the request's limits."""
    messages: list[Message] = []
    received = False

    async def receive() -> "Message":
        nonlocal received
        if received:
            return {"type": "http.disconnect"}
        received = True
        return {"type": "http.request", "body": asked.body, "more_body": False}

    async def send(message: "Message") -> None:
        messages.append(message)

    app.state.asked, app.state.full = asked, False
    _limit(asked)
    with suppress(Exception):  # answered and logged, and raised again for a server's own log
        await app({**asked.scope, "app": app}, receive, send)
    if not messages:  # there was no memory even for that
        return _refused(too_much_memory(asked.memory_limit, asked.memory_mib))
    body = b"".join(message.get("body", b"") for message in messages[1:])
    if len(body) > LARGEST_ANSWER_BYTES:
        return _refused(_too_large(len(body)))
    last = app.state.full or _resident_bytes() > KEPT_MIB * MIB
    return ForwardedAnswer(messages[0]["status"], list(messages[0]["headers"]), body, last)


def _refused(error: InvalidInput) -> ForwardedAnswer:
    from autosync.api.http.problems import refused

    answer = refused(error)
    return ForwardedAnswer(answer.status_code, answer.raw_headers, bytes(answer.body), last=True)


def too_much_memory(name: str, most_mib: int) -> InvalidInput:
    """name: of the operator's limit."""
    return InvalidInput(
        f"this request takes more than {most_mib} MiB of memory.",
        thing=name,
        value=f"more than {most_mib}",
        remedy=f"Post or ask for less. Whoever runs the service raises it: `autosync serve --limit "
        f"{name}=NUMBER`.",
    )


def _too_large(size_bytes: int) -> InvalidInput:
    return InvalidInput(
        f"the answer has {size_bytes} bytes; {LARGEST_ANSWER_BYTES} are allowed.",
        thing="answer",
        value=size_bytes,
        remedy="Ask for less, as with a smaller `top` or `limit`.",
    )


if __name__ == "__main__":
    main()
