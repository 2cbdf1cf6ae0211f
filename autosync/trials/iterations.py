"""One pass of a trial on one rank: the plan attached, iterations timed, and recorded on request."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autosync.device_clock import (
    ClockOrigin,
    Moment,
    clock_origin,
    moment_now,
    on_host_clock,
    wait_for_device,
)
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.hooks.optimizer_coverage import renormalized_tables
from autosync.trials.commands import (
    MeasuredIterations,
    PassDone,
    RecordedDeal,
    RecordedMessage,
    RecordedPass,
    RunPass,
)
from autosync.trials.failures import IterationsTookTooLong
from autosync.trials.machine import (
    cpu_ticks,
    host_id,
    network_bytes,
    peak_memory_bytes,
    reset_peak_memory,
)
from autosync.trials.session import TrialAttachment


def measure_pass(
    command: RunPass,
    attach: Callable[[ExecutionTrace | None], TrialAttachment],
    iterate: Callable[[nn.Module, int], None],
    detach: Callable[[], None],
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    *,
    engine: str,
    batches: int = 1,
    interfaces: str = "",
    own_seconds: Callable[[], float] = time.process_time,
    nic: str = "",
) -> PassDone:
    """Attach the plan, warm up, measure the iterations and detach.

    attach: receives the trace of the plan's messages where the pass is recorded. iterate: runs the
        iteration of that number on the attached model. model, optimizers: the job's own.
    engine: of the plan; see `Plan`. batches: whose gradients an iteration adds up. interfaces: of
        the network, whose bytes are counted; see `machine.network_bytes`. own_seconds: CPU seconds
        of this rank so far. nic: see `PassDone`.

    Raises:
        IterationsTookTooLong: an iteration would begin after `command.timeout_seconds`.
    """
    device = next(model.parameters()).device
    recording = RankRecording() if command.record else None
    can_tell_peak = reset_peak(device)
    attached = attach(recording.trace if recording else None)
    with _recorded_by_hooks(optimizers, attached.model, recording):
        measured = _measure_iterations(
            lambda iteration: iterate(attached.model, iteration),
            attached.flush,
            command,
            device,
            recording,
            interfaces,
            own_seconds,
        )
    detach()
    return PassDone(
        measured=measured,
        host=host_id(),
        peak_memory_bytes=peak_bytes(device) if can_tell_peak else None,
        digest=replica_digest(model),
        recording=(
            recording.recorded(measured.starts, engine, command.warmup, batches)
            if recording
            else None
        ),
        nic=nic,
    )


def _measure_iterations(
    iterate: Callable[[int], None],
    flush: Callable[[], None],
    command: RunPass,
    device: torch.device,
    recording: "RankRecording | None",
    interfaces: str,
    own_seconds: Callable[[], float],
) -> MeasuredIterations:
    """Ranks need not meet before: periods count from the latest start of an iteration. On a GPU all
    are moments of the device's own stream, and the host runs ahead of it as in training: it waits
    for the device before the first iteration and after the last. So there the warm-up is counted,
    too, and its share of the bytes taken off."""
    warmup, iterations = command.warmup, command.iterations
    timeout_seconds = command.timeout_seconds or math.inf
    counted = warmup + iterations if device.type == "cuda" else iterations
    origin = clock_origin(device)
    starts: list[Moment] = []
    started = time.monotonic()
    for iteration in range(warmup + iterations):
        if time.monotonic() - started > timeout_seconds:
            raise IterationsTookTooLong(
                f"{iteration} steps have taken {timeout_seconds:.3g} s, all that they may."
            )
        if iteration == warmup + iterations - counted:
            begun = own_seconds(), cpu_ticks(), network_bytes(interfaces)
        starts.append(moment_now(device))
        iterate(iteration)
    starts.append(moment_now(device))
    flush()
    wait_for_device(device)
    finished = time.monotonic()
    ended = own_seconds(), cpu_ticks(), network_bytes(interfaces)
    if recording is not None:
        recording.read_clock(origin, device)
    return MeasuredIterations(
        starts=tuple(on_host_clock(origin, starts)),
        finished=finished,
        cpu_seconds=ended[0] - begun[0],
        busy_seconds=ended[1].busy_seconds - begun[1].busy_seconds,
        total_seconds=ended[1].total_seconds - begun[1].total_seconds,
        sent_bytes=(ended[2] - begun[2]) * iterations // counted,
    )


def replica_digest(model: nn.Module) -> float:
    """Differs between replicas that have drifted apart: first and last element of every tensor, but
    of the tables that each rank's forward passes renormalize."""
    differ = {id(table.weight) for table in renormalized_tables(model).values()}
    alike = [p.detach() for p in model.parameters() if p.numel() and id(p) not in differ]
    if not alike:
        return 0.0
    ends = [value[(place,) * value.dim()] for value in alike for place in (0, -1)]
    parts = [torch.view_as_real(end) if end.is_complex() else end for end in ends]
    return float(torch.cat([part.double().view(-1) for part in parts]).sum())


@dataclass(slots=True)
class RankRecording:
    """What one rank records in one pass.

    trace: receives the messages. begins, forwards: when each forward pass began and ended.
    backwards: when each iteration's update began.
    """

    trace: ExecutionTrace = field(default_factory=ExecutionTrace)
    begins: list[Moment] = field(default_factory=list)
    forwards: list[Moment] = field(default_factory=list)
    backwards: list[Moment] = field(default_factory=list)

    def read_clock(self, origin: ClockOrigin, device: torch.device) -> None:
        """After the last iteration: all moments on `time.monotonic()`. Work is queued on a GPU
        ahead of time: when the script's thread waited is no span of the GPU's time line."""
        self.begins = list(on_host_clock(origin, self.begins))
        self.forwards = list(on_host_clock(origin, self.forwards))
        self.backwards = list(on_host_clock(origin, self.backwards))
        if device.type == "cuda":
            self.trace.waits.clear()

    def recorded(
        self, starts: Sequence[float], engine: str, warmup: int, batches: int
    ) -> RecordedPass | None:
        """The measured iterations; None where an iteration does not consist of a forward and a
        backward pass for each batch and one update, in this order.

        starts: of all iterations, and one moment after the last. engine: of the plan; torch's own
            engines do not say when their messages travel. batches: of an iteration.
        """
        begins, forwards, backwards = (
            tuple(one for one in noted if isinstance(one, float))
            for noted in (self.begins, self.forwards, self.backwards)
        )
        iterations = len(starts) - 1
        counts = {len(begins), len(forwards), batches * len(backwards)}
        if counts != {batches * iterations}:
            return None
        for i in range(iterations):
            of_batches = slice(i * batches, (i + 1) * batches)
            passes = zip(begins[of_batches], forwards[of_batches], strict=True)
            moments = [starts[i], *chain(*passes), backwards[i], starts[i + 1]]
            if moments != sorted(moments):
                return None
        messages = tuple(
            RecordedMessage(
                e.iteration, e.message, e.queued_seconds, e.start_seconds, e.end_seconds
            )
            for e in self.trace.events
            if e.takes_part and e.iteration >= warmup
        )
        deals = tuple(
            RecordedDeal(e.operation, e.start_seconds, e.end_seconds, e.sent_bytes)
            for e in self.trace.deals
        )
        shown = messages if engine == "autosync" else None
        return RecordedPass(begins, forwards, backwards, tuple(self.trace.waits), shown, deals)


@contextmanager
def _recorded_by_hooks(
    optimizers: Sequence[Optimizer], model: nn.Module, recording: RankRecording | None
) -> Iterator[None]:
    """Record when the model's forward passes begin and end and the optimizer's steps begin; of
    several optimizers, those of the one that steps first. What a step does before and after the
    forward pass so counts as forward and as backward."""
    if recording is None:
        yield
        return
    device = next(model.parameters()).device

    def forward_begins(*_: Any) -> None:
        recording.begins.append(moment_now(device))

    def forward_ended(*_: Any) -> None:
        recording.forwards.append(moment_now(device))

    leading: list[Optimizer] = []

    def step_begins(optimizer: Optimizer, *_: Any) -> None:
        leading[:] = leading or [optimizer]
        if optimizer is leading[0]:
            recording.backwards.append(moment_now(device))

    handles: list[RemovableHandle] = [
        model.register_forward_pre_hook(forward_begins, prepend=True),
        model.register_forward_hook(forward_ended),
    ]
    handles += [optimizer.register_step_pre_hook(step_begins) for optimizer in optimizers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def reset_peak(device: torch.device) -> bool:
    """Reset the peak of a device's memory: of a GPU's in tensors of this process, else of this
    process's resident size. Returns whether the kernel allows it."""
    if device.type != "cuda":
        return reset_peak_memory()
    torch.cuda.reset_peak_memory_stats(device)
    return True


def peak_bytes(device: torch.device) -> int:
    """Since the last reset, or in the whole life of this process."""
    if device.type != "cuda":
        return peak_memory_bytes()
    return torch.cuda.max_memory_allocated(device)
