"""How long the stretches of a replay take on one rank that trains by itself."""

import numpy as np
import torch

from autosync.trials.commands import StretchesTimed
from autosync.trials.contract import Workload
from autosync.trials.gpus import DeviceMoment, clock_origin, moment_now, on_host_clock
from autosync.trials.worker.replay import CPU, Replay, replay_module
from autosync.trials.worker.replay_compute import ReplayCompute, Stretch
from autosync.trials.worker.training_job import current_device, make_optimizer

WARMUP = 3


class NotedCompute:
    """Notes when each stretch begins. It computes whatever `inner` does."""

    def __init__(self, inner: ReplayCompute, device: torch.device) -> None:
        self._inner = inner
        self._device = device
        self.begun: list[DeviceMoment] = []
        self.stretches: list[Stretch] = []

    def set_batch_factor(self, factor: float) -> None:
        self._inner.set_batch_factor(factor)

    def set_swap_slowdown(self, factor: float) -> None:
        self._inner.set_swap_slowdown(factor)

    def start(self) -> None:
        self.begun, self.stretches = [], []
        self._inner.start()

    def resume(self) -> None:
        self._inner.resume()

    def run(self, stretch: Stretch) -> None:
        self.begun.append(moment_now(self._device))
        self.stretches.append(stretch)
        self._inner.run(stretch)


def time_stretches(
    workload: Workload, rank: int, compute: ReplayCompute, repeats: int
) -> StretchesTimed:
    """Of one rank that trains by itself, without synchronization.

    A stretch lasts until the next one begins, so it holds the gradients that it makes, and what
    the replay itself costs.
    """
    device = current_device(workload)
    noted = NotedCompute(compute, device)
    noted.set_batch_factor(1.0)
    domain = workload.domain
    model = replay_module(domain, workload.byte_scale, rank, noted, device)
    sparse = any(variable.sparse for variable in domain.graph.variables)
    optimizer = make_optimizer(domain.optimizer.name, model, sparse)
    signal = torch.zeros((), requires_grad=True, device=device)
    origin = clock_origin(device)
    passes = [_one_pass(model, optimizer, signal, noted) for _ in range(WARMUP + repeats)]
    moments = np.array([on_host_clock(origin, begun) for begun in passes[WARMUP:]])
    *seconds, update_seconds = np.median(np.diff(moments, axis=1), axis=0).tolist()
    return StretchesTimed(
        operations=tuple(_stands_for(stretch) for stretch in noted.stretches),
        backward=tuple(stretch.backward for stretch in noted.stretches),
        seconds=tuple(seconds),
        update_seconds=update_seconds,
        device="CPU" if device == CPU else torch.cuda.get_device_name(),
    )


def _one_pass(
    model: Replay, optimizer: torch.optim.Optimizer, signal: torch.Tensor, noted: NotedCompute
) -> list[DeviceMoment]:
    """When each stretch begins, the update, and what comes after it. A GPU is not waited for: as
    in a trial, the host runs ahead of it."""
    device = signal.device
    optimizer.zero_grad(set_to_none=True)
    loss = model(signal)
    forwards = len(noted.begun)
    turned = moment_now(device)
    loss.backward()
    ended = moment_now(device)
    optimizer.step()
    updated = moment_now(device)
    begun = noted.begun
    # the first stage of backward begins with the pass, not when autograd gets to it
    return [*begun[:forwards], turned, *begun[forwards + 1 :], ended, updated]


def _stands_for(stretch: Stretch) -> int:
    """The operation that owns a forward stretch comes first in it; the one that completes the
    gradients of a backward stretch comes last. Where nothing comes before the first owner, that
    stretch is empty, and its next to nothing goes to the first operation."""
    if not stretch.operations:
        return 0
    return stretch.operations[-1 if stretch.backward else 0]
