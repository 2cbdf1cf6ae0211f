"""When the passes of a user's own training step run, seen from its model and its optimizer."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autosync.trials.device_clock import DeviceMoment
from autosync.trials.iteration_recording import RankRecording
from autosync.trials.live.live_commands import RecordedSteps


@contextmanager
def watched(
    optimizers: Sequence[Optimizer], model: nn.Module, recording: RankRecording | None
) -> Iterator[None]:
    """Note when the model's forward passes end and the optimizer's steps begin; of several
    optimizers, those of the one that steps first."""
    if recording is None:
        yield
        return

    def forward_ended(*_: Any) -> None:
        recording.forwards.append(time.monotonic())

    leading: list[Optimizer] = []

    def step_begins(optimizer: Optimizer, *_: Any) -> None:
        leading[:] = leading or [optimizer]
        if optimizer is leading[0]:
            recording.backwards.append(time.monotonic())

    handles: list[RemovableHandle] = [model.register_forward_hook(forward_ended)]
    handles += [optimizer.register_step_pre_hook(step_begins) for optimizer in optimizers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def recorded_steps(
    recording: RankRecording, starts: Sequence[DeviceMoment], engine: str, warmup: int
) -> RecordedSteps | None:
    """None where a step does not consist of
    one forward pass, one backward pass and one update, in this order."""
    passes = (recording.forwards, recording.backwards)
    if any(len(moments) != len(starts) - 1 for moments in passes):
        return None
    moments = [float(start) for start in starts if not isinstance(start, torch.cuda.Event)]
    in_order = all(
        start <= forward <= backward <= after
        for start, forward, backward, after in zip(moments, *passes, moments[1:], strict=False)
    )
    if not in_order:
        return None
    return RecordedSteps(tuple(moments), recording.recorded(engine, warmup))
