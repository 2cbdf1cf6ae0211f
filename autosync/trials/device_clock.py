"""Moments of a training step on its device's own clock: CUDA events on a GPU."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

DeviceMoment = float | torch.cuda.Event
"""On a CPU seconds of `time.monotonic()`."""


def moment_now(device: torch.device) -> DeviceMoment:
    """Now on a CPU; on a GPU, when it has done all that was asked of it so far."""
    if device.type != "cuda":
        return time.monotonic()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_since(first: DeviceMoment, moments: Sequence[DeviceMoment]) -> list[float]:
    """Seconds from `first` to each moment; waits until a GPU has reached them all."""
    if not isinstance(first, torch.cuda.Event):
        return [float(one) - first for one in moments if not isinstance(one, torch.cuda.Event)]
    torch.cuda.synchronize()
    return [first.elapsed_time(one) / 1e3 for one in moments if isinstance(one, torch.cuda.Event)]


@dataclass(frozen=True, slots=True)
class ClockOrigin:
    """A moment known both on the device's clock and in seconds of `time.monotonic()`."""

    moment: DeviceMoment
    seconds: float


def clock_origin(device: torch.device) -> ClockOrigin:
    """Now. A GPU is waited for: the host's clock is read when its event has just come."""
    first = moment_now(device)
    if isinstance(first, torch.cuda.Event):
        first.synchronize()
        return ClockOrigin(first, time.monotonic())
    return ClockOrigin(first, first)


def on_host_clock(origin: ClockOrigin, moments: Sequence[DeviceMoment]) -> list[float]:
    """Seconds of `time.monotonic()` of moments after `origin`; waits until a GPU has reached them
    all. Differences between a GPU's moments are its own, within a microsecond in the first ten
    seconds (CUDA gives them as single-precision milliseconds) and eight in the first hundred; all
    share the few microseconds by which the host saw `origin` late."""
    if not isinstance(origin.moment, torch.cuda.Event):
        return [one for one in moments if not isinstance(one, torch.cuda.Event)]
    return [origin.seconds + seconds for seconds in seconds_since(origin.moment, moments)]
