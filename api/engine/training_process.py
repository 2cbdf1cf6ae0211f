"""The process that trains a simulator: it stands still while trials run on this machine."""

import logging
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from autosync.api.child_process import belong_to
from autosync.cancellation import check_cancelled
from autosync.errors import AutosyncError
from autosync.trials.pool.machine_lock import MachineLock

Say = Callable[[str], None]
Answer = TypeVar("Answer")

POLL_SECONDS = 0.05
"""Between two looks whether anything is measured: less than what a trial warms up for."""
LEAST_PRIORITY = 19
log = logging.getLogger(__name__)


def run_beside_trials(work: Callable[[Say], Answer], say: Say, lock: MachineLock) -> Answer:
    """What `work` returns, from a process that this one feeds with `work` by pickling. It holds no
    lock and no connection of this one, so that it may stand still anywhere.

    say: called with what `work` reports. lock: of those who measure.

    Raises:
        Cancelled: then nothing of it goes on. AutosyncError: of `work`.
        RuntimeError: it failed otherwise, or its process was killed.
    """
    context = get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(
        target=_run, args=(work, sending, os.getpid()), name="training", daemon=True
    )
    process.start()
    sending.close()  # its end is then seen here
    stopped = False
    try:
        while True:
            check_cancelled()
            if stopped != lock.is_held():
                stopped = not stopped
                _signal(process, signal.SIGSTOP if stopped else signal.SIGCONT)
            if not receiving.poll(POLL_SECONDS):
                continue
            if stopped:  # it may stand still in the middle of a message
                stopped = False
                _signal(process, signal.SIGCONT)
            kind, content = _received(receiving, process)
            if kind == "said":
                say(content)
            elif kind == "answer":
                answer: Answer = content
                return answer
            else:
                raise content
    finally:
        process.kill()
        process.join()
        receiving.close()


def _received(receiving: Connection, process: BaseProcess) -> tuple[str, Any]:
    try:
        kind, content = receiving.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"the training's process ended with status {process.exitcode}, without an answer"
        ) from None
    return kind, content


def _signal(process: BaseProcess, number: signal.Signals) -> None:
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, number)


def _run(work: Callable[[Say], object], sending: Connection, parent: int) -> None:
    """In the process, which may stand still when its parent ends."""
    belong_to(parent, LEAST_PRIORITY)
    try:
        sending.send(("answer", work(lambda text: sending.send(("said", text)))))
    except AutosyncError as error:
        sending.send(("error", error))
    except Exception as error:  # a process' boundary: its parent raises it
        log.debug("the training failed", exc_info=True)
        sending.send(("error", RuntimeError("".join(traceback.format_exception(error)))))
