"""Ctrl-C, SIGTERM and the end of a parent as a request to stop in good order."""

import os
import signal
import threading
import time
from types import FrameType

PARENT_POLL_SECONDS = 1.0


def stop_on_signals() -> threading.Event:
    """An event that the first SIGINT or SIGTERM sets; the second one ends the process."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGINT, ask)
    signal.signal(signal.SIGTERM, ask)
    return stop


def stop_with_parent(parent: int, stop: threading.Event) -> None:
    """Set `stop` when the process that started this one is gone, even by kill -9."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        stop.set()

    threading.Thread(target=watch, name="parent", daemon=True).start()
