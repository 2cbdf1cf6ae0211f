"""Waiting for what other threads and processes do. Imports little: scripts of tests use it, too."""

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECONDS = 400.0
"""Not what anything takes, but when to give up: other load may slow it down."""


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the condition holds. what: that is waited for, as an error names it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


def lives(process: int) -> bool:
    """Whether the process has not ended; a zombie has."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"
