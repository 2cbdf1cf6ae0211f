"""Moments of a training step on its device's own time line."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

Mark = float | torch.cuda.Event


def mark(device: torch.device) -> Mark:
    """Now on a CPU; on a GPU, when it has done all that was asked of it so far."""
    if device.type != "cuda":
        return time.monotonic()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_since(first: Mark, marks: Sequence[Mark]) -> list[float]:
    """Seconds from `first` to each mark; waits until a GPU has reached them all."""
    if not isinstance(first, torch.cuda.Event):
        return [float(one) - first for one in marks if not isinstance(one, torch.cuda.Event)]
    torch.cuda.synchronize()
    return [first.elapsed_time(one) / 1e3 for one in marks if isinstance(one, torch.cuda.Event)]


@dataclass(frozen=True, slots=True)
class Zero:
    """A moment known both as a mark of the device and in seconds on `time.monotonic()`."""

    mark: Mark
    seconds: float


def zero(device: torch.device) -> Zero:
    """Now. A GPU is waited for: the host's clock is read when its event has just come."""
    first = mark(device)
    if isinstance(first, torch.cuda.Event):
        first.synchronize()
        return Zero(first, time.monotonic())
    return Zero(first, first)


def on_clock(since: Zero, marks: Sequence[Mark]) -> list[float]:
    """Seconds on `time.monotonic()` of marks made after `since`; waits until a GPU has reached
    them all. Differences between a GPU's marks are its own, within a microsecond in the first ten
    seconds (CUDA tells them as single-precision milliseconds) and eight in the first hundred; all
    share the few microseconds by which the host saw `since` late."""
    if not isinstance(since.mark, torch.cuda.Event):
        return [one for one in marks if not isinstance(one, torch.cuda.Event)]
    return [since.seconds + seconds for seconds in seconds_since(since.mark, marks)]
