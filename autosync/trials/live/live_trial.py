"""A trial or single messages on one rank of a running job: what it measured, or why it failed."""

import gc
import time
from typing import Literal

import torch
import torch.distributed as dist

from autosync.environment import host_name
from autosync.runtime.transport.failures import SynchronizationFailed
from autosync.trials.contract import ErrorKind
from autosync.trials.device_clock import moment_now, seconds_since
from autosync.trials.gpus import peak_bytes, reset_peak
from autosync.trials.iteration_recording import RankRecording
from autosync.trials.live.live_attachment import LiveAttachment, attach_live
from autosync.trials.live.live_commands import (
    PARTED,
    LiveAnswer,
    LiveFailure,
    LivePass,
    LiveTrial,
    MeasuredSteps,
)
from autosync.trials.live.live_job import LiveJob
from autosync.trials.live.outside_load import cpu_use
from autosync.trials.live.step_recording import recorded_steps, watched
from autosync.trials.machine import (
    host_id,
    network_bytes,
    software_versions,
)
from autosync.trials.trial_attachment import replica_digest
from autosync.trials.worker.commands import TimeMessages
from autosync.trials.worker.timed_messages import time_messages
from autosync.trials.worker.worker_main import error_kind


class StepsTookTooLong(Exception):
    """The steps of a trial took longer than it may."""


def run_trial(job: LiveJob, trial: LiveTrial) -> LiveAnswer:
    """What this rank measured, or why it failed. State is restored either way."""
    attached: list[LiveAttachment] = []
    in_host_memory = job.device.type == "cpu"
    recording = RankRecording() if trial.record and in_host_memory else None
    can_tell_peak = reset_peak(job.device)
    begun = time.monotonic()
    try:
        attached.append(attach_live(job, trial.bundle, recording.trace if recording else None))
        measured = _measure(job, attached[0], trial, recording)
        attached[0].detach()
        return LivePass(
            host=host_id(),
            node=host_name(),
            versions=tuple(sorted(software_versions().items())),
            steps=measured,
            digest=replica_digest(job.model),
            counts_bytes=in_host_memory,  # what NCCL sends need not pass the kernel
            overhead_seconds=time.monotonic() - begun - measured.within_seconds,
            peak_memory_bytes=peak_bytes(job.device) if can_tell_peak else None,
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
        gc.collect()  # a detached engine is in reference cycles, and holds its buffers
        job.before.restore()
        if job.device.type == "cuda":
            torch.cuda.empty_cache()


def run_messages(job: LiveJob, command: TimeMessages) -> LiveAnswer:
    """What single messages took on this rank, or why they failed."""
    begun = time.monotonic()
    try:
        return time_messages(dist.get_rank(), command, job.device, job.message_groups)
    except Exception as error:  # a process boundary: the job goes on without
        job.end_groups()
        return LiveFailure(time.monotonic() - begun, _kind(error), _words(error))


def _kind(error: Exception) -> ErrorKind | Literal["parted"]:
    """Of a broken process group torch raises RuntimeErrors; the connections of the user's own step,
    to a data source for instance, fail with OSErrors."""
    if isinstance(error, StepsTookTooLong):
        return "timeout"
    if isinstance(error, RuntimeError | SynchronizationFailed):
        message = str(error).lower()
        if "timed out" in message:
            return "timeout"
        if isinstance(error, SynchronizationFailed) or "connection" in message:
            return PARTED
    return error_kind(error)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _measure(
    job: LiveJob, attached: LiveAttachment, trial: LiveTrial, recording: RankRecording | None
) -> MeasuredSteps:
    dist.barrier(job.group)
    starts = []
    begun = time.monotonic()
    with watched(job.optimizers, attached.model, recording):
        for iteration in range(trial.warmup + trial.iterations):
            if time.monotonic() - begun > trial.timeout_seconds:
                limit = f"{trial.timeout_seconds:.3g} s"
                raise StepsTookTooLong(f"{iteration} steps have taken {limit}, all that they may.")
            if iteration == trial.warmup:
                before, sent_before = cpu_use(), network_bytes()
            starts.append(moment_now(job.device))
            job.run_step(attached.model, iteration)
    starts.append(moment_now(job.device))
    attached.flush()
    seconds = seconds_since(starts[0], starts)
    return MeasuredSteps(
        starts=tuple(seconds),
        within_seconds=time.monotonic() - begun,
        sent_bytes=network_bytes() - sent_before,
        cpu_use=cpu_use().since(before),
        recorded=recorded_steps(recording, starts, trial.bundle.plan.engine, trial.warmup)
        if recording
        else None,
    )
