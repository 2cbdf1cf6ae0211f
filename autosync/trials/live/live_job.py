"""A running training job as a workload: what one rank does in its trials."""

import contextlib
import gc
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.optim import Optimizer

from autosync.bundle import Bundle
from autosync.environment import host_name
from autosync.errors import NotSupported
from autosync.runtime import attachment as runtime
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.torch_ddp import wrap_in_ddp
from autosync.runtime.transport.failures import SynchronizationFailed
from autosync.runtime.transport.process_groups import Groups, open_groups
from autosync.trials.contract import ErrorKind
from autosync.trials.device_clock import moment_now, seconds_since
from autosync.trials.iteration_recording import RankRecording
from autosync.trials.live.live_commands import (
    PARTED,
    LiveAnswer,
    LiveFailure,
    LivePass,
    LiveTrial,
    RecordedSteps,
)
from autosync.trials.live.outside_load import CpuUse, cpu_use
from autosync.trials.live.snapshot import Snapshot
from autosync.trials.live.step_recording import recorded_steps, watched
from autosync.trials.machine import (
    host_id,
    network_bytes,
    peak_memory_bytes,
    reset_peak_memory,
    software_versions,
)
from autosync.trials.trial_attachment import MOST_GROUPS, replica_digest
from autosync.trials.worker.worker_main import error_kind

Step = Callable[[Any, Optimizer], object]
"""One whole training iteration: forward, backward, `optimizer.step()`."""

LEAVING = timedelta(seconds=10)
"""How long a rank that leaves waits for the others."""


@dataclass(slots=True)
class LiveJob:
    """The user's job on this rank.

    before: its state, restored after every trial. control: a gloo group that no trial uses, so
    that ranks agree even after a trial has failed. timeout: of a collective within a trial.
    stated_device_type: what the user calls this rank's GPU; None to go by its name.
    """

    step: Step
    model: nn.Module
    optimizer: Optimizer
    before: Snapshot
    control: dist.ProcessGroup
    timeout: timedelta
    max_grad_norm: float | None = None
    stated_device_type: str | None = None
    group: Any = None
    groups: Groups | None = None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def renew_groups(self) -> None:
        """Process groups of the trials to come. Every rank calls this at the same time."""
        self.end_groups()
        self.group = dist.new_group(timeout=self.timeout)

    def abort_groups(self) -> None:
        """What is in flight on the trials' groups fails."""
        if self.groups is not None:
            self.groups.close()
            self.groups = None
        if self.group is not None:
            with contextlib.suppress(RuntimeError):  # it may have failed already
                self.group._get_backend(self.device).abort()

    def end_groups(self) -> None:
        """Peers that wait for this rank fail at once, not after the timeout: with the last
        reference to a group its connections close."""
        self.abort_groups()
        if self.group is not None:
            dist.destroy_process_group(self.group)
            self.group = None

    def reused_groups(self) -> Groups:
        """Of the engine, plan after plan; every rank replaces them at the same plan."""
        if self.groups is not None and len(self.groups.made) > MOST_GROUPS:
            self.groups.close()
            self.groups = None
        if self.groups is None:
            self.groups = open_groups(self.group, self.device)
        return self.groups


@dataclass(slots=True)
class LiveAttachment:
    """abandon: after a failure, let go of everything without waiting."""

    model: nn.Module
    flush: Callable[[], None]
    detach: Callable[[], None]
    abandon: Callable[[], None]


def leave(control: dist.ProcessGroup) -> None:
    """End a control group. All ranks wait for each other before, since what one has told another
    may still be in flight; one that does not come in time fails in what it exchanges.

    They meet in the store, not on the group: a rank that has failed leaves in the middle of the
    others' exchange, and would be taken for a member of it.
    """
    with contextlib.suppress(RuntimeError):  # out of time, or the store has gone with a rank
        default = dist.distributed_c10d._get_default_store()
        store = PrefixStore(f"autosync/{control.group_name}/left", default)
        if store.add("ranks", 1) == control.size():
            store.set("all", "")
        store.wait(["all"], LEAVING)
    dist.destroy_process_group(control)


def node_name() -> str:
    """The host that this rank counts as: its name, or what the environment says."""
    return host_name()


def run_trial(job: LiveJob, trial: LiveTrial) -> LiveAnswer:
    """What this rank measured, or why it failed. State is restored either way."""
    attached: list[LiveAttachment] = []
    in_host_memory = job.device.type == "cpu"
    recording = RankRecording() if trial.record and in_host_memory else None
    can_tell_peak = reset_peak_memory()
    begun = time.monotonic()
    try:
        attached.append(attach_live(job, trial.bundle, recording.trace if recording else None))
        measured = _measure(job, attached[0], trial, recording)
        attached[0].detach()
        return LivePass(
            host=host_id(),
            node=node_name(),
            versions=tuple(sorted(software_versions().items())),
            starts=measured.starts,
            overhead_seconds=time.monotonic() - begun - measured.within_seconds,
            cpu_use=measured.cpu_use,
            # what NCCL sends need not pass the kernel, whose counters these are
            sent_bytes=measured.sent_bytes if in_host_memory else None,
            peak_memory_bytes=peak_memory_bytes() if can_tell_peak else None,
            digest=measured.digest,
            recorded=measured.recorded,
        )
    except Exception as error:  # a process boundary: the job goes on whatever a strategy does
        failure = LiveFailure(time.monotonic() - begun, _kind(error), _words(error))
        error.__traceback__ = None  # its frames hold the replicas that must go
        job.abort_groups()
        while attached:
            attached.pop().abandon()
        gc.collect()  # engines are in reference cycles, and hold connections
        job.end_groups()
        return failure
    finally:
        job.before.restore()
        if job.device.type == "cuda":
            torch.cuda.empty_cache()


def _kind(error: Exception) -> ErrorKind | Literal["parted"]:
    """Of a broken process group torch raises RuntimeErrors; the connections of the user's own step,
    to a data source for instance, fail with OSErrors."""
    if isinstance(error, RuntimeError | SynchronizationFailed):
        message = str(error).lower()
        if "timed out" in message:
            return "timeout"
        if isinstance(error, SynchronizationFailed) or "connection" in message:
            return PARTED
    return error_kind(error)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class _MeasuredSteps:
    """within_seconds: of all steps, the warm-up's included; the rest as in `LivePass`."""

    starts: tuple[float, ...]
    within_seconds: float
    cpu_use: CpuUse
    sent_bytes: int
    digest: float
    recorded: RecordedSteps | None


def _measure(
    job: LiveJob, attached: LiveAttachment, trial: LiveTrial, recording: RankRecording | None
) -> _MeasuredSteps:
    dist.barrier(job.group)
    starts = []
    begun = time.monotonic()
    with watched(job.optimizer, attached.model, recording):
        for iteration in range(trial.warmup + trial.iterations):
            if iteration == trial.warmup:
                before, sent_before = cpu_use(), network_bytes()
            starts.append(moment_now(job.device))
            job.step(attached.model, job.optimizer)
    starts.append(moment_now(job.device))
    attached.flush()
    seconds = seconds_since(starts[0], starts)
    return _MeasuredSteps(
        starts=tuple(seconds),
        within_seconds=time.monotonic() - begun,
        sent_bytes=network_bytes() - sent_before,
        cpu_use=cpu_use().since(before),
        digest=replica_digest(job.model),
        recorded=recorded_steps(recording, starts, trial.bundle.plan.engine, trial.warmup)
        if recording
        else None,
    )


def attach_live(
    job: LiveJob, bundle: Bundle, trace: ExecutionTrace | None = None
) -> LiveAttachment:
    """Synchronize the job's model as the bundle says, on the groups of its trials.

    trace: as for `autosync.trials.trial_attachment.attach`.

    Raises:
        NotSupported: the optimizer or the backend cannot do what the plan asks.
    """
    if bundle.plan.engine == "ddp":
        return _attach_ddp(job, bundle.plan.bucket_bytes)
    names = tuple(variable.name for variable in bundle.variables)
    attachment = runtime.attach(
        job.model,
        job.optimizer,
        bundle.plan,
        names,
        job.group,
        max_grad_norm=job.max_grad_norm,
        share_values=False,
        groups=job.reused_groups(),
        trace=trace,
        agreed=True,  # rank 0 has just told all the others
    )

    def abandon() -> None:
        engine = attachment.engine
        with engine.condition:
            if engine.failure is None:
                engine.failure = SynchronizationFailed("the trial was abandoned.")
            engine.condition.notify_all()
        attachment.detach()

    return LiveAttachment(job.model, attachment.engine.flush, attachment.detach, abandon)


def _attach_ddp(job: LiveJob, bucket_bytes: int) -> LiveAttachment:
    # replicas are equal: every trial begins with the restored state
    replicas = [wrap_in_ddp(job.model, bucket_bytes, job.group, share_values=False)]
    alive = weakref.ref(replicas[0])
    attached = LiveAttachment(replicas[0], lambda: None, lambda: None, lambda: None)

    def let_go() -> None:
        replicas.clear()
        attached.model = job.model
        gc.collect()  # the reducer is in a reference cycle, and its hooks live as long as it

    def detach() -> None:
        let_go()
        if alive() is not None:
            raise NotSupported(
                "step keeps a reference to the model it was given, so torch's DDP cannot be "
                "taken off again.",
                thing="step",
                remedy="Use the model within the step only; keep the original one elsewhere.",
            )

    attached.detach, attached.abandon = detach, let_go
    return attached
