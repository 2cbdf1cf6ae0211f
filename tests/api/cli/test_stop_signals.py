"""The first signal asks, the second one ends; a process that does not look ends all the same."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.api.cli.command import LONGEST_SECONDS

DEAF = """
import time
from autosync.api.cli import stop_signals
stop = stop_signals.stop_on_signals()
{then}
print("ready", flush=True)
stop.wait()
print("asked", flush=True)
time.sleep(3600)
"""
"""Goes on for an hour after it was asked to stop."""


@contextmanager
def ready(code: str) -> "Iterator[subprocess.Popen[str]]":
    """A process that runs the code, which has said that it is ready."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(first: signal.Signals) -> None:
    with ready(DEAF.format(then="")) as process:
        process.send_signal(first)
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_SECONDS) == -signal.SIGINT


def test_who_does_not_look_ends_all_the_same() -> None:
    with ready(DEAF.format(then="stop_signals.leave_when_overdue(stop)")) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONGEST_SECONDS) == 128 + signal.SIGTERM


COMPILED = """
import hashlib
from autosync.api.cli import stop_signals
stop_signals.leave_when_overdue(stop_signals.stop_on_signals())
print("ready", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


def test_who_is_inside_compiled_code_for_half_an_hour_ends_all_the_same() -> None:
    """Python's handlers would only run behind it."""
    with ready(COMPILED) as process:
        time.sleep(0.5)  # else it may not be there yet, and the test shows nothing
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONGEST_SECONDS) == 128 + signal.SIGTERM


BUSY = """
import sys, threading, time
from autosync.api.cli.stop_signals import left_at_once
with left_at_once():
    threading.Thread(target=time.sleep, args=(3600,)).start()
    {end}
"""


@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("sys.exit(3)", 3), ("1 / 0", None)])
def test_a_thread_that_still_answers_is_not_waited_for(end: str, code: int | None) -> None:
    """But an error goes on as it would."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY.format(end=end)], stderr=subprocess.PIPE
    ) as process:
        try:
            if code is None:
                assert process.stderr is not None
                assert any(b"ZeroDivisionError" in line for line in process.stderr)
            else:
                assert process.wait(LONGEST_SECONDS) == code
        finally:
            process.kill()


def test_the_last_collection_has_nothing_to_look_through() -> None:
    """It would go through all that torch has loaded, for a second or more."""
    told = """
import atexit, gc
from autosync.api.cli.stop_signals import left_at_once
atexit.register(lambda: print(gc.get_count()[0] + len(gc.get_objects()) < gc.get_freeze_count()))
with left_at_once():
    pass
"""
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
