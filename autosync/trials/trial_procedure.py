"""The procedure of every trial, whatever ranks run it: passes until they are clean and agree.

A pool brings a `TrialTransport`: how one pass reaches its ranks. Everything else is here, once.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from autosync.errors import AutosyncError, InvalidInput
from autosync.runtime.transport.failures import SynchronizationFailed
from autosync.trials.contract import TrialError, TrialRequest, TrialResult
from autosync.trials.measurement import LOAD_LIMIT, PassMeasurement, relative_spread
from autosync.trials.request_names import PREDICTED_WAITS
from autosync.trials.trial_failure import TrialFailed

UNSCHEDULED_PASSES = 2
"""Of a job that swaps: recorded before the optimizer has made its state, and with it."""

FILLING = 4
"""Iterations of a plan that lags, times its staleness, until as much is under way as may be: enough
where messages take a third longer than compute. A replay is filled at once (`ReplayJob.begin`)."""

PASS_TOLERANCE = 0.05
"""Passes whose medians differ by more are followed by one more."""


class TrialTransport(Protocol):
    """How the passes of a trial reach the ranks of a pool."""

    @property
    def description(self) -> str:
        """Where trials run, as results and reports repeat it."""
        ...

    @property
    def swaps(self) -> bool:
        """Whether its ranks have activations and swap them; else what compute waits for them is
        what the request says."""
        ...

    @property
    def world_size(self) -> int: ...

    @property
    def scales(self) -> tuple[float, float]:
        """Byte scale s and time scale k."""
        ...

    def prepare(self, request: TrialRequest) -> float:
        """Make the ranks and the plan ready for passes; the seconds that the plan took. Raises as
        `run_pass`."""
        ...

    def run_pass(self, request: TrialRequest, after_load: bool) -> PassMeasurement:
        """Warm up and measure once. after_load: the pass before was disturbed by outside load.

        Raises:
            TrialFailed: a rank failed.
            AutosyncError: the plan cannot run here.
        """
        ...

    def contamination(self, measured: PassMeasurement) -> float:
        """How much others disturbed a pass; above 1 it is measured again."""
        ...

    def reset_ranks(self) -> None:
        """After a failure in the middle of a trial: what the ranks do for it still must end."""
        ...


@dataclass
class TrialProcedure:
    """Runs trials over a transport, one at a time.

    repeats: how often a contaminated pass is measured again.
    repeated: passes so far that were.
    """

    transport: TrialTransport
    repeats: int
    repeated: int = 0
    _results: dict[str, TrialResult] = field(default_factory=dict)

    def run(self, request: TrialRequest) -> TrialResult:
        """Measure one strategy; a key that was run before is answered from memory. A cancelled
        trial was not run."""
        if request.key in self._results:
            return self._results[request.key]
        result = self._run(request)
        if result.error is None or result.error.kind != "cancelled":
            self._results[request.key] = result
        return result

    def _run(self, request: TrialRequest) -> TrialResult:
        try:
            refuse_misfit(request, self.transport.world_size)
            request = steadied(request, self.transport.swaps)
            prepare_seconds = self.transport.prepare(request)
            passes = self._passes(request)
        except TrialFailed as failure:
            if not failure.ranks_usable:
                self.transport.reset_ranks()
            return self._failed(request, failure.error)
        except SynchronizationFailed:  # the pool is itself a rank, and another is gone for good
            raise
        except AutosyncError as error:
            return self._failed(request, TrialError("refused", str(error)))
        except BaseException:  # the ranks may still be at work on it
            self.transport.reset_ranks()
            raise
        return self._succeeded(request, passes, prepare_seconds)

    def _passes(self, request: TrialRequest) -> list[PassMeasurement]:
        """All passes, and one more where they disagree."""
        passes = [self._clean_pass(request) for _ in range(request.passes)]
        if disagree([one.median_seconds for one in passes]):
            passes.append(self._clean_pass(request))
        return passes

    def _clean_pass(self, request: TrialRequest) -> PassMeasurement:
        """One pass, repeated while it is contaminated; the least contaminated one."""
        attempts = [self.transport.run_pass(request, after_load=False)]
        while len(attempts) <= self.repeats and self.transport.contamination(attempts[-1]) > 1:
            loaded = attempts[-1].load > LOAD_LIMIT
            attempts.append(self.transport.run_pass(request, after_load=loaded))
        self.repeated += len(attempts) > 1
        return min(attempts, key=self.transport.contamination)

    def _failed(self, request: TrialRequest, error: TrialError) -> TrialResult:
        byte_scale, time_scale = self.transport.scales
        return TrialResult(
            key=request.key,
            iteration_seconds=(),
            step_seconds=None,
            spread=None,
            error=error,
            launcher=self.transport.description,
            byte_scale=byte_scale,
            time_scale=time_scale,
        )

    def _succeeded(
        self, request: TrialRequest, passes: list[PassMeasurement], prepare_seconds: float
    ) -> TrialResult:
        periods = tuple(period for one in passes for period in one.iteration_seconds)
        peaks = [one.peak_memory_bytes for one in passes if one.peak_memory_bytes is not None]
        overhead_seconds = prepare_seconds + sum(one.overhead_seconds for one in passes)
        byte_scale, time_scale = self.transport.scales
        return TrialResult(
            key=request.key,
            iteration_seconds=periods,
            step_seconds=float(np.median(periods)),
            spread=relative_spread(periods),
            error=None,
            launcher=self._description(request),
            byte_scale=byte_scale,
            time_scale=time_scale,
            load=max(one.load for one in passes),
            overhead_seconds=overhead_seconds / len(passes),
            peak_memory_bytes=max(peaks, default=None),
            sent_bytes=passes[-1].sent_bytes,
            versions=passes[-1].versions,
            timeline=min(passes, key=lambda one: one.disturbance).timeline,
        )

    def _description(self, request: TrialRequest) -> str:
        measured = request.bundle.strategy.swap is None or self.transport.swaps
        return ", ".join([self.transport.description, *([] if measured else [PREDICTED_WAITS])])


def disagree(median_seconds: list[float]) -> bool:
    """Whether passes differ so much that one more is due."""
    return max(median_seconds) > (1 + PASS_TOLERANCE) * min(median_seconds)


def steadied(request: TrialRequest, trains: bool) -> TrialRequest:
    """A plan that lags is ahead of its messages for its first iterations, and swapping records its
    schedule in them: these warm up, too. trains: the ranks train a model, and do not replay one."""
    first = request.bundle.plan.staleness * (FILLING if trains else 1)
    if request.bundle.strategy.swap is not None:
        first += UNSCHEDULED_PASSES
    return replace(request, warmup=request.warmup + first)


def refuse_misfit(request: TrialRequest, world_size: int) -> None:
    """Raises InvalidInput for a plan of another cluster, or a trial that measures nothing."""
    planned = request.bundle.plan.world_size
    if planned != world_size:
        raise InvalidInput(
            f"the plan is for {planned} ranks, the cluster has {world_size}.",
            thing="plan.shares",
            value=planned,
            remedy="This strategy belongs to another cluster.",
        )
    if request.warmup < 0 or request.iterations < 1 or request.passes < 1:
        raise InvalidInput(
            f"a trial of {request.passes} passes with {request.iterations} iterations "
            "measures nothing.",
            thing="iterations",
            value=request.iterations,
        )
