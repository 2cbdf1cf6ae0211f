"""Clock readings of a device: seconds of `time.monotonic()` on a CPU, CUDA events on a GPU."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

Moment = float | torch.cuda.Event


def moment_now(device: torch.device) -> Moment:
    """Now on a CPU; on a GPU, when it has finished all work queued on its stream so far."""
    if device.type != "cuda":
        return time.monotonic()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def wait_for_device(device: torch.device) -> None:
    """Until a GPU has finished all work queued on it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_between(first: Moment, second: Moment) -> float:
    """Of two moments that a GPU has reached (`wait_for_device`)."""
    if isinstance(first, torch.cuda.Event):
        assert isinstance(second, torch.cuda.Event)
        return float(first.elapsed_time(second)) / 1e3
    assert isinstance(second, float)
    return second - first


def seconds_since(first: Moment, moments: Sequence[Moment]) -> list[float]:
    """Seconds from `first` to each moment; waits until a GPU, which need not be the current one,
    has reached them all."""
    for each in (first, *moments):
        if isinstance(each, torch.cuda.Event):
            each.synchronize()
    return [seconds_between(first, one) for one in moments]


@dataclass(frozen=True, slots=True)
class ClockOrigin:
    """A moment known both on the device's clock and in seconds of `time.monotonic()`."""

    moment: Moment
    seconds: float


def clock_origin(device: torch.device) -> ClockOrigin:
    """Now. The host's clock is read as soon as a GPU has reached its event."""
    first = moment_now(device)
    if isinstance(first, torch.cuda.Event):
        first.synchronize()
        return ClockOrigin(first, time.monotonic())
    return ClockOrigin(first, first)


def on_host_clock(origin: ClockOrigin, moments: Sequence[Moment]) -> list[float]:
    """Seconds of `time.monotonic()` of moments after `origin`; waits until a GPU has reached them
    all. Differences between a GPU's moments are its own, within a microsecond in the first ten
    seconds (CUDA gives them as single-precision milliseconds) and eight in the first hundred; all
    share the few microseconds by which the host saw `origin` late."""
    if isinstance(origin.moment, torch.cuda.Event):
        return [origin.seconds + seconds for seconds in seconds_since(origin.moment, moments)]
    return [one for one in moments if isinstance(one, float)]
