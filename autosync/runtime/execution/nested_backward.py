"""Backward passes that a plan cannot follow: inside of another one, as of a reentrant checkpoint,
with a graph of their own, or with updates inside."""

import sys
from types import FrameType

import torch
from torch.autograd.function import BackwardCFunction

from autosync.errors import NotSupported

FUNCTIONS_BACKWARD = BackwardCFunction.apply.__code__
"""Through it autograd calls the backward of a function that is written in Python."""


def within_backward() -> bool:
    """Whether a backward pass is running: a forward within it is one of a checkpoint."""
    running: int = torch._C._current_graph_task_id()
    return running != -1


def inside_another() -> bool:
    """Whether a backward pass runs inside of another one. Asked by a hook of a gradient: it is not
    called from a function's backward otherwise."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is FUNCTIONS_BACKWARD:
            return True
        frame = frame.f_back
    return False


def unknown_end() -> NotSupported:
    """The model's outputs would have told where the whole backward pass ends."""
    return NotSupported(
        "a reentrant checkpoint runs its own backward pass, and the model itself was not called, "
        "so where the whole backward pass ends is not known.",
        thing="backward",
        remedy="Checkpoint with use_reentrant=False, or call model(...) itself.",
    )


def ready_twice(variable: str) -> NotSupported:
    return NotSupported(
        f"the gradient of {variable!r} became ready twice in one backward pass.",
        thing=f"variable {variable}",
        remedy="Where reentrant checkpoints share a weight, use use_reentrant=False; after "
        "a backward pass that failed, start all ranks again from the last checkpoint.",
    )


def with_graph() -> NotSupported:
    """Averages have no graph: a reduction over ranks is nothing that autograd knows."""
    return NotSupported(
        "backward(create_graph=True) leaves gradients with a graph of their own, which averages "
        "over ranks do not have.",
        thing="backward",
        value="create_graph=True",
        remedy="Take what needs the graph by torch.autograd.grad(loss, parameters, "
        "create_graph=True) and call backward() on the loss without create_graph.",
    )
