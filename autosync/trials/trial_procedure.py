"""The procedure of every trial, whatever ranks run it: passes until they are clean and agree."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import numpy as np

from autosync.errors import AutosyncError, InvalidInput
from autosync.extensions.registry import iterations_in_flight, unsteady_passes
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.trials.contract import TrialError, TrialFailed, TrialRequest, TrialResult
from autosync.trials.measurement import LOAD_LIMIT, PassMeasurement, relative_spread
from autosync.trials.request_names import PREDICTED_WAITS

FILLING = 4
"""Times the iterations by which a plan's updates are late: the warm-up iterations until as many
updates are pending as the plan allows, where messages take a third longer than compute or more. A
replay reaches that state at once (`ReplayJob.begin`)."""

PASS_TOLERANCE = 0.05
"""Passes whose medians differ by more are followed by one more."""


@dataclass(kw_only=True)
class TrialPool(ABC):
    """Runs trials one at a time; a `contract.Pool`. What kind of ranks it has, and how a pass
    reaches them, is a subclass's.

    repeats: how often a contaminated pass is measured again. repeated: passes so far that were.
    """

    repeats: int
    repeated: int = field(default=0, init=False)
    _results: dict[str, TrialResult] = field(default_factory=dict, init=False)

    @property
    @abstractmethod
    def description(self) -> str:
        """Where trials run, as results and reports repeat it."""

    @property
    @abstractmethod
    def world_size(self) -> int: ...

    @property
    def scales(self) -> tuple[float, float]:
        """Byte scale s and time scale k."""
        return 1.0, 1.0

    @property
    def trains(self) -> bool:
        """Whether its ranks train a model. Else they replay one: what extensions add to its compute
        is what the request says."""
        return True

    def prepare(self, request: TrialRequest) -> float:
        """Make the ranks and the plan ready for passes; the seconds that the plan took. Raises as
        `run_pass`."""
        return 0.0

    @abstractmethod
    def run_pass(self, request: TrialRequest, after_load: bool) -> PassMeasurement:
        """Warm up and measure once. after_load: the pass before was disturbed by outside load.

        Raises:
            TrialFailed: a rank failed.
            AutosyncError: the plan cannot run here.
        """

    def contamination(self, measured: PassMeasurement) -> float:
        """How much others disturbed a pass; above 1 it is measured again. By default by outside
        load alone: how much periods spread is the job's own."""
        return measured.load_excess

    @abstractmethod
    def reset_ranks(self) -> None:
        """After a failure in the middle of a trial: end what the ranks still do for it."""

    @abstractmethod
    def close(self) -> None:
        """See `contract.Pool`."""

    def run(self, request: TrialRequest) -> TrialResult:
        """Measure one strategy; a key that was run before is answered from memory."""
        if request.key not in self._results:
            self._results[request.key] = self._run(request)
        return self._results[request.key]

    def _run(self, request: TrialRequest) -> TrialResult:
        try:
            refuse_other_cluster(request, self.world_size)
            request = with_longer_warmup(request, self.trains)
            prepare_seconds = self.prepare(request)
            passes = self._passes(request)
        except TrialFailed as failure:
            if not failure.ranks_usable:
                self.reset_ranks()
            return self._failed(request, failure.error)
        except SynchronizationFailed:  # the pool is itself a rank, and another is gone for good
            raise
        except AutosyncError as error:
            return self._failed(request, TrialError("refused", str(error)))
        except BaseException:  # the ranks may still be at work on it
            self.reset_ranks()
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
        attempts = [self.run_pass(request, after_load=False)]
        while len(attempts) <= self.repeats and self.contamination(attempts[-1]) > 1:
            loaded = attempts[-1].load > LOAD_LIMIT
            attempts.append(self.run_pass(request, after_load=loaded))
        self.repeated += len(attempts) > 1
        return min(attempts, key=self.contamination)

    def _failed(self, request: TrialRequest, error: TrialError) -> TrialResult:
        byte_scale, time_scale = self.scales
        return TrialResult(
            key=request.key,
            iteration_seconds=(),
            step_seconds=None,
            spread=None,
            error=error,
            launcher=self.description,
            byte_scale=byte_scale,
            time_scale=time_scale,
        )

    def _succeeded(
        self, request: TrialRequest, passes: list[PassMeasurement], prepare_seconds: float
    ) -> TrialResult:
        periods = tuple(period for one in passes for period in one.iteration_seconds)
        peaks = [one.peak_memory_bytes for one in passes if one.peak_memory_bytes is not None]
        overhead_seconds = prepare_seconds + sum(one.overhead_seconds for one in passes)
        byte_scale, time_scale = self.scales
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
        slowed = any(entry.slows_compute for entry in request.bundle.strategy.extensions)
        predicted = slowed and not self.trains
        return ", ".join([self.description, *([PREDICTED_WAITS] if predicted else [])])


def disagree(median_seconds: list[float]) -> bool:
    """Whether passes differ so much that one more is due."""
    return max(median_seconds) > (1 + PASS_TOLERANCE) * min(median_seconds)


def with_longer_warmup(request: TrialRequest, trains: bool) -> TrialRequest:
    """The request with the warm-up that its plan needs: late updates are not yet late in the first
    iterations, and an extension may record its schedule in them. trains: the ranks train a model,
    and do not replay one."""
    bundle = request.bundle
    first = iterations_in_flight(bundle.plan.extensions) * (FILLING if trains else 1)
    first += unsteady_passes(bundle.strategy.extensions)
    return replace(request, warmup=request.warmup + first)


def refuse_other_cluster(request: TrialRequest, world_size: int) -> None:
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
