"""The pool of a running training job: its own ranks take plan after plan.

Rank 0 leads (`JobPool`); the others serve. Commands and answers travel on the job's control group.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autosync.bundle import Bundle
from autosync.cluster import MessageKind
from autosync.environment import host_name
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.trials.commands import MessagesTimed, PassDone, RunPass, TimeMessages
from autosync.trials.contract import ErrorKind, TrialError, TrialFailed, TrialRequest
from autosync.trials.gpus import moment_now, peak_bytes, reset_peak
from autosync.trials.live.job import LiveJob
from autosync.trials.machine import family_seconds, host_id, software_versions
from autosync.trials.measurement import PassMeasurement, message_seconds, pass_measurement
from autosync.trials.session import (
    IterationsTookTooLong,
    TrialAttachment,
    attach,
    measure_iterations,
    replica_digest,
)
from autosync.trials.timeline_recording import RankRecording
from autosync.trials.trial_procedure import TrialPool
from autosync.trials.worker.timed_messages import time_messages
from autosync.trials.worker.worker_main import error_kind

LATE = timedelta(seconds=30)
"""How long a rank is waited for beyond what a command may take: it puts its state back."""

REPEATS = 1
"""How often a pass under outside load is measured again."""

PARTED: Final = "parted"
"""The kind of a failure that is another rank's doing: the connection to a peer has closed."""


@dataclass(frozen=True, slots=True)
class RenewGroups:
    """What comes next runs on new process groups: something has ended those before."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all ranks go on with; nothing follows. reason: why no tuning stands behind it."""

    bundle: Bundle
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LiveFailure:
    """Why a rank's part of a command failed, and how many seconds after its begin."""

    seconds: float
    kind: ErrorKind | Literal["parted"]
    message: str


LiveAnswer = PassDone | MessagesTimed | LiveFailure
A = TypeVar("A", PassDone, MessagesTimed)


@dataclass
class JobPool(TrialPool):
    """Rank 0's side; also a `MessagePool`. A trial that fails restores every rank and costs itself
    only; the next begins on new process groups. Ranks are the job's own and are not killed: a
    collective that hangs ends with its timeout, and a trial whose steps take longer than the
    request allows before the next step. `close` leaves the ranks serving, so that another pool may
    follow; `dismiss` ends that.

    place: where trials run, in words. until: of `clock`, in seconds; no step of a trial begins
        later.
    """

    job: LiveJob
    place: str
    until: float = math.inf
    repeats: int = field(default=REPEATS, kw_only=True)
    clock: Callable[[], float] = time.monotonic
    at_cluster_rates: bool = field(default=True, init=False)
    shaped: bool = field(default=False, init=False)
    _renew_groups: bool = field(default=True, init=False)

    @property
    def description(self) -> str:
        return self.place

    @property
    def world_size(self) -> int:
        return dist.get_world_size()

    def run_pass(self, request: TrialRequest, after_load: bool) -> PassMeasurement:
        """It does not wait for outside load to pass: the job's time is short. A GPU's timeline is
        not recorded."""
        left = self.until - self.clock()
        if left <= 0:
            text = "the time of the tuning is up."
            raise TrialFailed(TrialError("timeout", text), ranks_usable=True)
        command = RunPass(
            request.key,
            request.warmup,
            request.iterations,
            request.record and self.job.device.type == "cpu",
            request.bundle,
            timeout_seconds=min(request.timeout_seconds, left),
        )
        begun = time.monotonic()
        answers = self._ask(command, PassDone)
        return pass_measurement(
            request,
            answers,
            time.monotonic() - begun,
            nics=counted_nics(answers),
            versions=tuple(sorted(software_versions().items())),
        )

    def time_messages(
        self, kind: MessageKind, size_bytes: int, workers: tuple[int, ...], repeats: int
    ) -> list[float]:
        """Seconds of each message of a kind among the ranks `workers`.

        Raises:
            TrialFailed: a rank failed; the next command finds new process groups.
        """
        command = TimeMessages(kind, size_bytes, workers, repeats)
        try:
            return message_seconds(self._ask(command, MessagesTimed))
        except TrialFailed:
            self.reset_ranks()
            raise

    def _ask(self, command: RunPass | TimeMessages, answered_by: type[A]) -> list[A]:
        if self._renew_groups:
            self.job.control.from_first(RenewGroups())
            self.job.renew_groups()
            self._renew_groups = False
        self.job.control.from_first(command)
        answers = _take_part(self.job, command)
        failures = {
            rank: answer for rank, answer in enumerate(answers) if isinstance(answer, LiveFailure)
        }
        if failures:
            raise TrialFailed(first_cause(failures))
        return [answer for answer in answers if isinstance(answer, answered_by)]

    def reset_ranks(self) -> None:
        """The next command finds new process groups; those of single messages end then."""
        self._renew_groups = True

    def close(self) -> None:
        """Nothing to leave behind: the ranks are the job's own."""

    def dismiss(self, verdict: Verdict) -> None:
        """Tell all ranks what to go on with."""
        self.job.control.from_first(verdict)


def serve(job: LiveJob) -> Verdict:
    """The other ranks' side: trials until rank 0 says what to go on with."""
    while True:
        match job.control.from_first():
            case RenewGroups():
                job.renew_groups()
            case RunPass() | TimeMessages() as command:
                _take_part(job, command)
            case Verdict() as verdict:
                return verdict
            case other:
                raise TypeError(f"rank 0 sent no command, but {other!r}.")


def _take_part(job: LiveJob, command: RunPass | TimeMessages) -> list[LiveAnswer]:
    """Run a trial's pass, or single messages, together with all ranks; every rank's answer.

    A rank that is stuck in the user's own code cannot be ended. The others wait for as long as its
    steps and a collective may take, and then fail.
    """
    begun = time.monotonic()
    if isinstance(command, RunPass):
        may_take = timedelta(seconds=command.timeout_seconds or 0.0) + job.timeout
        mine = _run_pass(job, command)
    else:
        may_take = job.timeout * (command.repeats + 1)
        mine = _run_messages(job, command)
    left = may_take - timedelta(seconds=time.monotonic() - begun)
    job.control.meet(max(left, timedelta(0)) + LATE)
    answers: list[LiveAnswer] = job.control.gathered(mine)
    if any(isinstance(answer, LiveFailure) for answer in answers):
        job.end_groups()
    return answers


def _run_pass(job: LiveJob, command: RunPass) -> LiveAnswer:
    """What this rank measured, or why it failed. State is restored either way."""
    assert command.bundle is not None  # rank 0 sends it with every pass
    attached: list[TrialAttachment] = []
    recording = RankRecording() if command.record else None
    can_tell_peak = reset_peak(job.device)
    begun = time.monotonic()
    try:
        attached.append(
            attach(
                job.model,
                job.optimizer,
                command.bundle,
                1.0,
                job.reused_groups,
                recording.trace if recording else None,
                job.as_running,
            )
        )
        dist.barrier(job.group)
        with watched(job.optimizers, attached[0].model, recording):
            measured = measure_iterations(
                lambda iteration: job.run_step(attached[0].model, iteration),
                attached[0],
                command.warmup,
                command.iterations,
                job.device,
                recording,
                own_seconds=family_seconds,
                timeout_seconds=command.timeout_seconds or math.inf,
            )
        attached[0].detach()
        engine, warmup = command.bundle.plan.engine, command.warmup
        return PassDone(
            measured=measured,
            host=host_id(),
            peak_memory_bytes=peak_bytes(job.device) if can_tell_peak else None,
            digest=replica_digest(job.model),
            recording=recording.recorded(measured.starts, engine, warmup) if recording else None,
            nic=host_name() if job.device.type == "cpu" else "",  # NCCL need not pass the kernel
        )
    except Exception as error:  # a process boundary: the job goes on whatever a strategy does
        failure = LiveFailure(time.monotonic() - begun, failure_kind(error), _words(error))
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


def _run_messages(job: LiveJob, command: TimeMessages) -> LiveAnswer:
    """What single messages took on this rank, or why they failed."""
    begun = time.monotonic()
    try:
        return time_messages(dist.get_rank(), command, job.device, job.message_groups)
    except Exception as error:  # a process boundary: the job goes on without
        job.end_groups()
        return LiveFailure(time.monotonic() - begun, failure_kind(error), _words(error))


def failure_kind(error: Exception) -> ErrorKind | Literal["parted"]:
    """Of a broken process group torch raises RuntimeErrors; the connections of the user's own step,
    to a data source for instance, fail with OSErrors."""
    if isinstance(error, IterationsTookTooLong):
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


def first_cause(failures: dict[int, LiveFailure]) -> TrialError:
    """What a rank did by itself, else a wait that ended without its peer, else a lost peer; the
    earliest of those. Ranks begin a trial at different moments, so times alone do not show it.

    failures: by rank.
    """

    def order(rank: int) -> tuple[int, float]:
        failure = failures[rank]
        return {"timeout": 1, PARTED: 2}.get(failure.kind, 0), failure.seconds

    rank = min(failures, key=order)
    failure = failures[rank]
    kind = "crashed" if failure.kind == PARTED else failure.kind
    return TrialError(kind, f"rank {rank}: {failure.message}")


def counted_nics(answers: Sequence[PassDone]) -> list[str]:
    """Of every rank, the NIC whose bytes it counted; none where hosts share a kernel, whose
    counters miss what they send each other, or where messages need not pass it."""
    kernel_of = {answer.nic: answer.host for answer in answers}
    hosts = len(kernel_of)
    if "" in kernel_of or hosts < 2 or len(set(kernel_of.values())) < hosts:
        return []
    return [answer.nic for answer in answers]


@contextmanager
def watched(
    optimizers: Sequence[Optimizer], model: nn.Module, recording: RankRecording | None
) -> Iterator[None]:
    """Note when the model's forward passes end and the optimizer's steps begin; of several
    optimizers, those of the one that steps first. What a step does before and after the forward
    pass so counts as forward and as backward."""
    if recording is None:
        yield
        return
    device = next(model.parameters()).device

    def forward_ended(*_: Any) -> None:
        recording.forwards.append(moment_now(device))

    leading: list[Optimizer] = []

    def step_begins(optimizer: Optimizer, *_: Any) -> None:
        leading[:] = leading or [optimizer]
        if optimizer is leading[0]:
            recording.backwards.append(moment_now(device))

    handles: list[RemovableHandle] = [model.register_forward_hook(forward_ended)]
    handles += [optimizer.register_step_pre_hook(step_begins) for optimizer in optimizers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
