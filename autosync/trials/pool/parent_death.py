"""The kernel kills a worker when the process that started it ends, however it ends.

A worker ends by itself at the end of its input, but not while it is stopped or stuck in foreign
code. So there is a pipe on which nothing is ever written. Its reading end, which the worker
inherits, is asynchronous: when the writing end goes, the kernel signals the end's owner
(fcntl(2), F_SETOWN), and the signal is set to SIGKILL, which reaches stopped processes too.
"""

import contextlib
import fcntl
import os
import signal


class ParentDeath:
    """worker_end: the descriptor that the worker inherits."""

    def __init__(self) -> None:
        self.worker_end, held_end = os.pipe()
        self._held_end = os.fdopen(held_end, "wb")

    def arm(self, process_group: int) -> None:
        """From now on the group lives no longer than this process. One that has ended already is
        left alone."""
        with contextlib.suppress(ProcessLookupError):
            fcntl.fcntl(self.worker_end, fcntl.F_SETOWN, -process_group)
        fcntl.fcntl(self.worker_end, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(self.worker_end, fcntl.F_SETFL, os.O_ASYNC)
        os.close(self.worker_end)

    def disarm(self) -> None:
        """Nothing of the group lives on. May be called twice."""
        self._held_end.close()
