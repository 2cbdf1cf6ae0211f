"""Whether a backward pass runs inside of another one, as of a reentrant checkpoint."""

import sys
from types import FrameType

from torch.autograd.function import BackwardCFunction

FUNCTIONS_BACKWARD = BackwardCFunction.apply.__code__
"""Through it autograd calls the backward of a function that is written in Python."""


def inside_another() -> bool:
    """Asked by a hook of a gradient: it is not called from a function's backward otherwise."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is FUNCTIONS_BACKWARD:
            return True
        frame = frame.f_back
    return False
