"""Passes on the ranks of a running training job: what a trial's procedure runs over there.

Rank 0 leads; the others serve. Commands and answers travel on the job's control group.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from autosync.trials.contract import TrialError, TrialRequest
from autosync.trials.live.live_commands import (
    PARTED,
    LiveAnswer,
    LiveFailure,
    LivePass,
    LiveTrial,
    RenewGroups,
    Verdict,
)
from autosync.trials.live.live_job import LiveJob
from autosync.trials.live.live_pass import live_measurement
from autosync.trials.live.live_trial import run_messages, run_trial
from autosync.trials.measurement import PassMeasurement, refuse_drift
from autosync.trials.trial_failure import TrialFailed
from autosync.trials.worker.commands import MessagesTimed, TimeMessages

A = TypeVar("A", LivePass, MessagesTimed)

LATE = timedelta(seconds=30)
"""How long a rank is waited for beyond what a command may take: it puts its state back."""


@dataclass
class LiveTransport:
    """Rank 0's side. A failed trial restores every rank; the next begins on new process groups.

    until: of `clock`, in seconds: no step of a trial begins later.
    """

    job: LiveJob
    description: str
    until: float = math.inf
    clock: Callable[[], float] = time.monotonic
    scales: tuple[float, float] = (1.0, 1.0)
    swaps: bool = True
    _renew_groups: bool = True

    @property
    def world_size(self) -> int:
        return dist.get_world_size()

    def prepare(self, request: TrialRequest) -> float:
        """Nothing: the ranks are there, and take the plan as it is."""
        return 0.0

    def run_pass(self, request: TrialRequest, after_load: bool) -> PassMeasurement:
        """Load is not waited out: the job's time is short."""
        left = self.until - self.clock()
        if left <= 0:
            text = "the time of the tuning is up."
            raise TrialFailed(TrialError("timeout", text), ranks_usable=True)
        passes = self._ask(
            LiveTrial(
                request.bundle,
                request.warmup,
                request.iterations,
                request.record,
                min(request.timeout_seconds, left),
            ),
            LivePass,
        )
        refuse_drift(request.bundle, [one.digest for one in passes])
        return live_measurement(request, passes)

    def time_messages(self, command: TimeMessages) -> list[MessagesTimed]:
        """Raises TrialFailed: a rank failed; the next command finds new process groups."""
        try:
            return self._ask(command, MessagesTimed)
        except TrialFailed:
            self.reset_ranks()
            raise

    def _ask(self, command: LiveTrial | TimeMessages, answered_by: type[A]) -> list[A]:
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

    def contamination(self, measured: PassMeasurement) -> float:
        """Outside load alone: how much periods spread is the job's own."""
        return measured.load_excess

    def reset_ranks(self) -> None:
        """The ranks are the job's own and are not killed; they meet on new process groups."""
        self._renew_groups = True

    def dismiss(self, verdict: Verdict) -> None:
        """Tell all ranks what to go on with."""
        self.job.control.from_first(verdict)


def serve(job: LiveJob) -> Verdict:
    """The other ranks' side: trials until rank 0 says what to go on with."""
    while True:
        match job.control.from_first():
            case RenewGroups():
                job.renew_groups()
            case LiveTrial() | TimeMessages() as command:
                _take_part(job, command)
            case Verdict() as verdict:
                return verdict
            case other:
                raise TypeError(f"rank 0 sent no command, but {other!r}.")


def _take_part(job: LiveJob, command: LiveTrial | TimeMessages) -> list[LiveAnswer]:
    """Run a trial's pass, or single messages, together with all ranks; every rank's answer.

    A rank that is stuck in the user's own code cannot be ended. The others wait for as long as its
    steps and a collective may take, and then fail.
    """
    begun = time.monotonic()
    if isinstance(command, LiveTrial):
        may_take = timedelta(seconds=command.timeout_seconds) + job.timeout
        mine = run_trial(job, command)
    else:
        may_take = job.timeout * (command.repeats + 1)
        mine = run_messages(job, command)
    left = may_take - timedelta(seconds=time.monotonic() - begun)
    job.control.meet(max(left, timedelta(0)) + LATE)
    answers: list[LiveAnswer] = job.control.gathered(mine)
    if any(isinstance(answer, LiveFailure) for answer in answers):
        job.end_groups()
    return answers


def first_cause(failures: dict[int, LiveFailure]) -> TrialError:
    """What a rank did by itself, else a wait that ended without its peer, else a lost peer; the
    earliest of those. Ranks begin a trial at different moments, so times alone do not tell.

    failures: by rank.
    """

    def order(rank: int) -> tuple[int, float]:
        failure = failures[rank]
        return {"timeout": 1, PARTED: 2}.get(failure.kind, 0), failure.seconds

    rank = min(failures, key=order)
    failure = failures[rank]
    kind = "crashed" if failure.kind == PARTED else failure.kind
    return TrialError(kind, f"rank {rank}: {failure.message}")
