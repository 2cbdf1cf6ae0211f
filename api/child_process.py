"""What a process does at its start that ends with the one that started it."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def belong_to(parent: int, niceness: int) -> None:
    """However the parent ends, the kernel ends this process with it. Ctrl-C reaches the parent,
    which ends this one. niceness: added to the parent's."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before that
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)
