"""Moments of a training step on its device's own time line."""

import time
from collections.abc import Sequence

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
