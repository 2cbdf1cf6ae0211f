"""Iterations of a running job under torch.profiler, on this rank."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from autosync.device_clock import wait_for_device
from autosync.diagnosis.rank_trace import RankTrace, rank_trace
from autosync.environment import host_name
from autosync.interop.training_traces import STEP

RunIteration = Callable[[int], None]
"""One whole training iteration, by its number."""


def timed_iterations(run: RunIteration, count: int, device: torch.device) -> float:
    """Seconds of an iteration, the mean of `count`, without a profiler. A GPU is waited for."""
    wait_for_device(device)
    begun = time.monotonic()
    for number in range(count):
        run(number)
    wait_for_device(device)
    return (time.monotonic() - begun) / count


def traced_iterations(
    run: RunIteration, count: int, device: torch.device, warm_up: Callable[[], None]
) -> RankTrace:
    """What the profiler records of `count` iterations on this rank. warm_up: runs before them, once
    the profiler has started, which may take seconds."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as recorded:
        warm_up()
        wait_for_device(device)
        for number in range(count):
            with record_function(f"{STEP}{number}"):
                run(number)
                wait_for_device(device)  # what it launched belongs to it
    with tempfile.TemporaryDirectory(prefix="autosync-") as folder:
        file = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(file))
        trace = json.loads(file.read_bytes())
    found = rank_trace(trace, "the profiler's trace", dist.get_rank())
    return replace(found, host=host_name())


@contextmanager
def counted_passes(model: nn.Module) -> Iterator[list[int]]:
    """How often the model's forward pass runs with gradients meanwhile: the list's only item."""
    count = [0]

    def on_call(*_: object) -> None:
        count[0] += torch.is_grad_enabled()

    handle = model.register_forward_pre_hook(on_call)
    try:
        yield count
    finally:
        handle.remove()
