"""Ctrl-C, SIGTERM and the end of a parent as a request to stop in good order."""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PARENT_POLL_SECONDS = 0.5
LEAVE_SECONDS = 1.75
"""From the request to stop until the process ends, whatever it computes: compiled code looks at no
token. What was claimed is given back before that (`engine.leases`), and the kernel ends the ranks
and the testbeds of a process with it."""


class StopRequest(threading.Event):
    """exit_code: of a process that a signal has stopped, as shells report it."""

    exit_code: int = 128 + signal.SIGINT


def stop_on_signals() -> StopRequest:
    """Set by the first SIGINT or SIGTERM, also while the main thread is inside compiled code, which
    Python's own handlers wait for; a second one ends the process at once."""
    stop = StopRequest()
    _tell_at_once(stop)

    def ask(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        stop.exit_code = 128 + number
        stop.set()

    signal.signal(signal.SIGINT, ask)
    signal.signal(signal.SIGTERM, ask)
    return stop


def _tell_at_once(stop: StopRequest) -> None:
    """By a thread that reads the numbers of signals, which the interpreter writes as they come,
    until the other end is closed."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        with os.fdopen(reading, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] in (signal.SIGINT, signal.SIGTERM) and not stop.is_set():
                    stop.exit_code = 128 + number[0]
                    stop.set()

    threading.Thread(target=watch, name="signals", daemon=True).start()


@contextmanager
def stopped_by_signals() -> Iterator[StopRequest]:
    """`stop_on_signals` while the block runs."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop_on_signals()
    finally:
        os.close(signal.set_wakeup_fd(-1))
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_when_overdue(stop: StopRequest, exit_code: int | None = None) -> None:
    """End this process `LEAVE_SECONDS` after it was asked to stop, if it still lives then.
    exit_code: by default that of the signal."""

    def watch() -> None:
        stop.wait()
        time.sleep(LEAVE_SECONDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(stop.exit_code if exit_code is None else exit_code)

    threading.Thread(target=watch, name="overdue", daemon=True).start()


def unwind_on_sigterm() -> None:
    """SIGTERM ends this process as Ctrl-C does: what it has started is ended on the way out."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


@contextmanager
def left_at_once() -> Iterator[None]:
    """Where threads are left at the end of the block, this process ends with the code that it would
    end with, and waits for none of them: one may compile, or answer a request, for another minute.
    Nor does its last collection look for garbage in what is loaded: of torch that takes a second.
    """
    code: object = 0
    try:
        yield
    except SystemExit as left:
        code = left.code
        if not _threads_left():
            raise
    finally:
        gc.freeze()
    if _threads_left():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _threads_left() -> bool:
    """Threads that the interpreter would wait for."""
    return any(
        not thread.daemon
        for thread in threading.enumerate()
        if thread is not threading.main_thread()
    )


def stop_with_parent(parent: int, stop: threading.Event) -> None:
    """Set `stop` when the process that started this one is gone, even by kill -9."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        stop.set()

    threading.Thread(target=watch, name="parent", daemon=True).start()
