"""Passes on the ranks of a running training job: what a trial's procedure runs over there.

Rank 0 leads; the others serve. Commands and answers travel on the job's control group.
"""

from dataclasses import dataclass

import torch.distributed as dist

from autosync.trials.contract import TrialError, TrialRequest
from autosync.trials.live.live_commands import (
    PARTED,
    LiveAnswer,
    LiveCommand,
    LiveFailure,
    LivePass,
    LiveTrial,
    Verdict,
)
from autosync.trials.live.live_job import LiveJob
from autosync.trials.live.live_pass import live_measurement
from autosync.trials.live.live_trial import run_trial
from autosync.trials.measurement import PassMeasurement, refuse_drift
from autosync.trials.trial_failure import TrialFailed


@dataclass
class LiveTransport:
    """Rank 0's side. A failed trial restores every rank; the next begins on new process groups."""

    job: LiveJob
    description: str
    scales: tuple[float, float] = (1.0, 1.0)
    _renew_groups: bool = True

    @property
    def world_size(self) -> int:
        return dist.get_world_size()

    def prepare(self, request: TrialRequest) -> float:
        """Nothing: the ranks are there, and take the plan as it is."""
        return 0.0

    def run_pass(self, request: TrialRequest, after_load: bool) -> PassMeasurement:
        """Load is not waited out: the job's time is short."""
        trial = LiveTrial(
            request.bundle, request.warmup, request.iterations, request.record, self._renew_groups
        )
        self._renew_groups = False
        _broadcast(self.job, trial)
        answers = _run_on_this_rank(self.job, trial)
        failures = {
            rank: answer for rank, answer in enumerate(answers) if isinstance(answer, LiveFailure)
        }
        if failures:
            raise TrialFailed(first_cause(failures))
        passes = [answer for answer in answers if isinstance(answer, LivePass)]
        refuse_drift(request.bundle, [one.digest for one in passes])
        return live_measurement(request, passes)

    def contamination(self, measured: PassMeasurement) -> float:
        """Outside load alone: how much periods spread is the job's own."""
        return measured.load_excess

    def reset_ranks(self) -> None:
        """The ranks are the job's own and are not killed; they meet on new process groups."""
        self._renew_groups = True

    def dismiss(self, verdict: Verdict) -> None:
        """Tell all ranks what to go on with."""
        _broadcast(self.job, verdict)


def serve(job: LiveJob) -> Verdict:
    """The other ranks' side: trials until rank 0 says what to go on with."""
    while True:
        received: list[LiveCommand | None] = [None]
        dist.broadcast_object_list(received, src=0, group=job.control)
        match received[0]:
            case LiveTrial() as trial:
                _run_on_this_rank(job, trial)
            case Verdict() as verdict:
                return verdict
            case other:
                raise TypeError(f"rank 0 sent no command, but {other!r}.")


def _broadcast(job: LiveJob, command: LiveCommand) -> None:
    dist.broadcast_object_list([command], src=0, group=job.control)


def _run_on_this_rank(job: LiveJob, trial: LiveTrial) -> list[LiveAnswer]:
    """Run a trial's pass together with all ranks; every rank's answer."""
    if trial.renew_groups:
        job.renew_groups()
    mine = run_trial(job, trial)
    answers: list[LiveAnswer] = [mine] * dist.get_world_size()
    dist.all_gather_object(answers, mine, group=job.control)
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
