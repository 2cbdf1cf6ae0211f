"""The `job` launcher's pool: the ranks of a running training job take plan after plan.

Rank 0 holds the pool; the others serve. Commands and answers travel on the job's control group.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch.distributed as dist

from autosync.bundle import Bundle
from autosync.documents import from_json, to_json
from autosync.trials.contract import ErrorKind, TrialError, TrialRequest, TrialResult
from autosync.trials.live.live_job import PARTED, LiveJob, LiveTrial, run_trial
from autosync.trials.live.live_pass import LivePass, measured_pass
from autosync.trials.measurement import refuse_drift, spread, until_clean
from autosync.trials.pool.process_pool import PASS_TOLERANCE
from autosync.trials.pool.worker_group import Failed

REPEATS = 1
"""How often a pass under outside load is measured again: the job's time is short."""

Failure = tuple[float, ErrorKind | Literal["parted"], str]
"""Of one rank in a trial: seconds until it, its kind, what it says."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all ranks go on with. bundle: None for torch's DDP, for `reason`."""

    bundle: Bundle | None
    reason: str = ""


@dataclass
class JobPool:
    """The Pool protocol on rank 0. A trial that fails restores every rank and costs itself only;
    one that hangs ends with its collectives' timeout, whatever the request allows: the ranks are
    the job's own and are not killed. `close` leaves the ranks serving, so that another pool may
    follow; `dismiss` ends that."""

    job: LiveJob
    description: str
    repeats: int = REPEATS
    _known: dict[str, TrialResult] = field(default_factory=dict)
    _fresh: bool = True

    def run(self, request: TrialRequest) -> TrialResult:
        """Measure one strategy; a key that was run before is answered from memory."""
        if request.key not in self._known:
            self._known[request.key] = self._run(request)
        return self._known[request.key]

    def close(self) -> None:
        """Nothing to leave behind: the ranks are the job's own."""

    def dismiss(self, verdict: Verdict) -> None:
        """Tell all ranks what to go on with."""
        text = to_json(verdict.bundle) if verdict.bundle is not None else None
        _broadcast(self.job, ("end", text, verdict.reason))

    def _run(self, request: TrialRequest) -> TrialResult:
        failed = TrialResult(
            request.key, (), None, None, None, self.description, byte_scale=1.0, time_scale=1.0
        )
        world = dist.get_world_size()
        if request.bundle.plan.world_size != world:
            text = f"the plan is for {request.bundle.plan.world_size} ranks, the job has {world}."
            return replace(failed, error=TrialError("refused", text))
        try:
            passes = self._passes(request)
        except Failed as failure:
            return replace(failed, error=failure.error)
        periods = tuple(period for one in passes for period in one.iteration_seconds)
        peaks = [one.peak_memory_bytes for one in passes if one.peak_memory_bytes is not None]
        return replace(
            failed,
            iteration_seconds=periods,
            step_seconds=float(np.median(periods)),
            spread=spread(periods),
            load=max(one.load for one in passes),
            overhead_seconds=float(np.mean([one.overhead_seconds for one in passes])),
            peak_memory_bytes=max(peaks, default=None),
            sent_bytes=passes[-1].sent_bytes,
            versions=passes[-1].versions,
            timeline=min(passes, key=lambda one: spread(one.iteration_seconds)).timeline,
        )

    def _passes(self, request: TrialRequest) -> list[LivePass]:
        """All passes, and one more where they disagree; each the least loaded of its attempts.

        Raises:
            Failed: with the first cause.
        """
        passes: list[LivePass] = []
        while len(passes) < request.passes or _disagree(passes, request.passes):
            attempts = until_clean(lambda _: self._pass(request), self.repeats)
            passes.append(min(attempts, key=lambda one: one.contamination))
        return passes

    def _pass(self, request: TrialRequest) -> LivePass:
        """Raises Failed with the first cause."""
        trial = (to_json(request.bundle), request.warmup, request.iterations, request.record)
        command = ("trial", trial, self._fresh)
        _broadcast(self.job, command)
        answers = _take_part(self.job, command)
        errors = {rank: a["error"] for rank, a in enumerate(answers) if "error" in a}
        self._fresh = bool(errors)
        if errors:
            raise Failed(_first_cause(errors))
        refuse_drift(request.bundle, [answer["digest"] for answer in answers])
        return measured_pass(request, answers)


def _first_cause(errors: dict[int, Failure]) -> TrialError:
    """What a rank did by itself, else a wait that ended without its peer, else a lost peer; the
    earliest of those. Ranks begin a trial at different moments, so times alone do not tell."""

    def order(rank: int) -> tuple[int, float]:
        seconds, kind, _ = errors[rank]
        return {"timeout": 1, PARTED: 2}.get(kind, 0), seconds

    rank = min(errors, key=order)
    _, kind, message = errors[rank]
    return TrialError("crashed" if kind == PARTED else kind, f"rank {rank}: {message}")


def serve(job: LiveJob) -> Verdict:
    """The other ranks' part: trials until rank 0 says what to go on with."""
    while True:
        command: list[Any] = [None]
        dist.broadcast_object_list(command, src=0, group=job.control)
        if command[0][0] == "end":
            _, text, reason = command[0]
            return Verdict(from_json(Bundle, text) if text is not None else None, reason)
        _take_part(job, command[0])


def _broadcast(job: LiveJob, command: tuple[Any, ...]) -> None:
    dist.broadcast_object_list([command], src=0, group=job.control)


def _take_part(job: LiveJob, command: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Run the command's trial; every rank's answer."""
    _, (line, warmup, iterations, record), fresh = command
    if fresh:
        job.renew_groups()
    mine = run_trial(job, LiveTrial(from_json(Bundle, line), warmup, iterations, record))
    answers: list[dict[str, Any]] = [{}] * dist.get_world_size()
    dist.all_gather_object(answers, mine, group=job.control)
    if any("error" in answer for answer in answers):
        job.end_groups()
    return answers


def _disagree(passes: list[LivePass], asked: int) -> bool:
    """Whether the passes asked for differ so much that one more is due."""
    medians = [float(np.median(one.iteration_seconds)) for one in passes]
    return len(passes) == asked and max(medians) > (1 + PASS_TOLERANCE) * min(medians)
