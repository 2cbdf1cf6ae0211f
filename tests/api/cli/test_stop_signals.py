"""The first signal asks, the second one ends; a process that does not look ends all the same."""

import signal
import subprocess
import sys
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


@contextmanager
def deaf(then: str = "") -> "Iterator[subprocess.Popen[str]]":
    """A process that goes on for an hour after it was asked to stop."""
    command = [sys.executable, "-c", DEAF.format(then=then)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(first: signal.Signals) -> None:
    with deaf() as process:
        process.send_signal(first)
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_SECONDS) == -signal.SIGINT


def test_who_does_not_look_ends_all_the_same() -> None:
    with deaf("stop_signals.leave_when_overdue(stop)") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONGEST_SECONDS) == 128 + signal.SIGTERM
