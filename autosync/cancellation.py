"""Cancels long work: its caller holds a token, and the work checks the token now and then.

As with the cancel scopes of anyio, the token belongs to the thread of control and is not handed
through every call: trials, rankings, fits and waits far below ask `check_cancelled`.
"""

import contextvars
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import IO, ParamSpec, TypeVar

POLL_SECONDS = 0.05
"""Between two looks at the token while something is waited for."""

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")


class Cancelled(BaseException):
    """The running work was cancelled, with the reason. Not an `Exception`, like asyncio's
    CancelledError, so that handlers of failures do not catch it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CancellationToken:
    """Cancelled once, by any thread. reason: of the first call; empty before."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self.reason = ""

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self, reason: str) -> None:
        if not self.cancelled:
            self.reason = reason
            self._cancelled.set()


_token: contextvars.ContextVar[CancellationToken | None] = contextvars.ContextVar(
    "cancellation", default=None
)


@contextmanager
def cancelled_by(token: CancellationToken) -> Iterator[None]:
    """Code in the block checks this token. Threads that it starts do not, unless `submit` gives
    them their work."""
    before = _token.set(token)
    try:
        yield
    finally:
        _token.reset(before)


def check_cancelled() -> None:
    """Raises Cancelled if the running block was cancelled."""
    token = _token.get()
    if token is not None and token.cancelled:
        raise Cancelled(token.reason)


def submit(
    threads: futures.Executor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> "futures.Future[T]":
    """Give work to another thread, where it checks this thread's token."""
    context = contextvars.copy_context()
    return threads.submit(lambda: context.run(work, *args, **kwargs))


def result_of(future: "futures.Future[T]") -> T:
    """Wait for another thread's result. Raises Cancelled if cancelled while waiting."""
    while not futures.wait((future,), POLL_SECONDS).done:
        check_cancelled()
    return future.result()


def beside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` on another thread and return its result. So a cancellation takes effect here at
    once, even while code that checks no token (a compiler, a solver) still runs there. Without a
    token the work runs on this thread. Raises Cancelled."""
    if _token.get() is None:
        return work(*args, **kwargs)
    threads = futures.ThreadPoolExecutor(1)
    try:
        return result_of(submit(threads, work, *args, **kwargs))
    finally:
        threads.shutdown(wait=False)


def in_order(threads: int, work: Callable[[Item], T], items: Iterable[Item]) -> Iterator[T]:
    """Yield the results of other threads for the items, in order. At most one item more than
    there are threads is in progress. Raises Cancelled, without waiting for items in progress."""
    pending: deque[futures.Future[T]] = deque()
    pool = futures.ThreadPoolExecutor(threads)
    try:
        for item in items:
            check_cancelled()
            pending.append(submit(pool, work, item))
            if len(pending) > threads:
                yield result_of(pending.popleft())
        while pending:
            yield result_of(pending.popleft())
    finally:  # where it was cancelled, compiled code ends its items by itself
        pool.shutdown(wait=False, cancel_futures=True)


def wait_readable(file: "IO[str] | int", seconds: float) -> bool:
    """Whether data or the end of the file can be read within this time. Raises Cancelled if
    cancelled while waiting."""
    waiting = select.poll()
    waiting.register(file, select.POLLIN)
    until = time.monotonic() + seconds
    while True:
        check_cancelled()
        rest = until - time.monotonic()
        if waiting.poll(max(0.0, min(rest, POLL_SECONDS)) * 1e3):
            return True
        if rest <= 0:
            return False
