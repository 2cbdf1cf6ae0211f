"""Marks in a step and the seconds between them: the host's clock, or CUDA events on a GPU."""

import time

import torch

Mark = float | torch.cuda.Event


def mark_now(device: torch.device) -> Mark:
    """On a GPU: when it has done all that was asked of it so far."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def wait_for(device: torch.device) -> None:
    """Until a GPU has reached all marks."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_between(first: Mark, second: Mark) -> float:
    """Of two marks that have been waited for."""
    if isinstance(first, torch.cuda.Event):
        assert isinstance(second, torch.cuda.Event)
        return float(first.elapsed_time(second)) / 1e3
    assert isinstance(second, float)
    return second - first
