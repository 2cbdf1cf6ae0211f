"""The pool of a running training job: its own ranks take plan after plan.

Rank 0 leads (`JobPool`); the others serve. Commands and answers travel on the job's control group.
"""

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from autosync.bundle import Bundle
from autosync.cluster import MessageKind
from autosync.environment import host_name
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.trials.commands import CommandFailed, MessagesTimed, PassDone, RunPass, TimeMessages
from autosync.trials.contract import TrialError, TrialFailed, TrialRequest, TrialResult
from autosync.trials.failures import failure_of, first_cause
from autosync.trials.iterations import (
    measure_pass,
)
from autosync.trials.live.job import LiveJob
from autosync.trials.machine import family_seconds, software_versions
from autosync.trials.measurement import PassMeasurement, message_seconds, pass_measurement
from autosync.trials.session import TrialAttachment, attach
from autosync.trials.trial_procedure import TrialPool
from autosync.trials.worker.timed_messages import time_messages

LATE = timedelta(seconds=30)
"""How long a rank is waited for beyond what a command may take: it puts its state back."""

REPEATS = 1
"""How often a pass under outside load is measured again."""


@dataclass(frozen=True, slots=True)
class RenewGroups:
    """Open new process groups: a failure has ended those before."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The bundle that all ranks train with from now on; the last command. reason: why it is not the
    result of a tuning, where it is none. answer: the result, where a job that has begun to train
    cannot take it on; `bundle` is torch's DDP then."""

    bundle: Bundle
    reason: str = ""
    answer: Bundle | None = None


LiveAnswer = PassDone | MessagesTimed | CommandFailed
A = TypeVar("A", PassDone, MessagesTimed)


@dataclass
class JobPool(TrialPool):
    """Rank 0's side; also a `MessagePool`. A trial that fails restores every rank and costs itself
    only; the next begins on new process groups. Ranks are the job's own and are not killed: a
    collective that hangs ends with its timeout, and a trial whose steps take longer than the
    request allows before the next step. `close` leaves the ranks serving, so that another pool may
    follow; `dismiss` ends that.

    place: where trials run, in words. until: of `clock`, in seconds; no step of a trial begins
        later. refusal: why the ranks cannot try a bundle, in words; empty where they can. refused:
        the last refusal of a trial, in words.
    """

    job: LiveJob
    place: str
    until: float = math.inf
    refusal: Callable[[Bundle], str] = lambda bundle: ""
    repeats: int = field(default=REPEATS, kw_only=True)
    clock: Callable[[], float] = time.monotonic
    at_cluster_rates: bool = field(default=True, init=False)
    shaped: bool = field(default=False, init=False)
    refused: str = field(default="", init=False)
    _renew_groups: bool = field(default=True, init=False)

    @property
    def description(self) -> str:
        return self.place

    @property
    def world_size(self) -> int:
        return dist.get_world_size()

    def run_pass(self, request: TrialRequest, after_load: bool) -> PassMeasurement:
        """Does not wait until outside load is over: the job's time is short. A GPU's timeline is
        not recorded."""
        left = self.until - self.clock()
        if left <= 0:
            text = "the time of the tuning is up."
            raise TrialFailed(TrialError("timeout", text), ranks_usable=True)
        if text := self.refusal(request.bundle):
            raise TrialFailed(TrialError("refused", text), ranks_usable=True)
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

    def _failed(self, request: TrialRequest, error: TrialError) -> TrialResult:
        if error.kind == "refused":
            self.refused = error.message
        return super()._failed(request, error)

    def with_refusal(self, text: str) -> str:
        """And why a trial was refused, where the text does not say it."""
        return text if self.refused in text else f"{text} Not tried: {self.refused}"

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
        answers = _run_command(self.job, command)
        failures = {
            rank: answer for rank, answer in enumerate(answers) if isinstance(answer, CommandFailed)
        }
        if failures:
            raise TrialFailed(first_cause(failures)[1])
        return [answer for answer in answers if isinstance(answer, answered_by)]

    def reset_ranks(self) -> None:
        """The next command finds new process groups; those of single messages end, too."""
        self._renew_groups = True

    def close(self) -> None:
        """Nothing to leave behind: the ranks are the job's own."""

    def dismiss(self, verdict: Verdict) -> None:
        """Send all ranks the bundle that they train with from now on."""
        self.job.control.from_first(verdict)


def serve(job: LiveJob) -> Verdict:
    """The other ranks' side: take part in trials until rank 0 sends the verdict."""
    while True:
        match job.control.from_first():
            case RenewGroups():
                job.renew_groups()
            case RunPass() | TimeMessages() as command:
                _run_command(job, command)
            case Verdict() as verdict:
                return verdict
            case other:
                raise TypeError(f"rank 0 sent no command, but {other!r}.")


def _run_command(job: LiveJob, command: RunPass | TimeMessages) -> list[LiveAnswer]:
    """Run a trial's pass, or single messages, together with all ranks; every rank's answer.

    A rank that hangs in the user's own code cannot be killed. The others wait for as long as its
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
    if any(isinstance(answer, CommandFailed) for answer in answers):
        job.end_groups()
    return answers


def _run_pass(job: LiveJob, command: RunPass) -> LiveAnswer:
    """What this rank measured, or why it failed. State is restored either way."""
    bundle = command.bundle
    assert bundle is not None  # rank 0 sends it with every pass
    attached: list[TrialAttachment] = []

    def attach_plan(trace: ExecutionTrace | None) -> TrialAttachment:
        attached.append(
            attach(job.model, job.optimizer, bundle, 1.0, job.reused_groups, trace, job.as_running)
        )
        dist.barrier(job.group)
        return attached[0]

    begun = time.monotonic()
    try:
        return measure_pass(
            command,
            attach_plan,
            job.run_step,
            lambda: attached[0].detach(),
            job.model,
            job.optimizers,
            engine=bundle.plan.engine,
            batches=job.accumulate,
            own_seconds=family_seconds,
            nic=host_name() if job.device.type == "cpu" else "",  # NCCL need not pass the kernel
        )
    except Exception as error:  # a process boundary: the job goes on whatever a strategy does
        failure = failure_of(error, time.monotonic() - begun)
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
        return time_messages(command, job.reused_groups.get(job.group, job.device), job.device)
    except Exception as error:  # a process boundary: the job goes on without
        job.end_groups()
        return failure_of(error, time.monotonic() - begun)


def counted_nics(answers: Sequence[PassDone]) -> list[str]:
    """Of every rank, the NIC whose bytes it counted; none where hosts share a kernel, whose
    counters miss what they send each other, or where messages need not pass it."""
    kernel_of = {answer.nic: answer.host for answer in answers}
    hosts = len(kernel_of)
    if "" in kernel_of or hosts < 2 or len(set(kernel_of.values())) < hosts:
        return []
    return [answer.nic for answer in answers]
