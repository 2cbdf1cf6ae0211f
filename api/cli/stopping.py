"""Ctrl-C and SIGTERM as a request to stop in good order."""

import signal
import threading
from types import FrameType


def stop_on_signals() -> threading.Event:
    """An event that the first SIGINT or SIGTERM sets; the second one ends the process."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGINT, ask)
    signal.signal(signal.SIGTERM, ask)
    return stop
