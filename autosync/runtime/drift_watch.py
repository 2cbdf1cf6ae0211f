"""Reports when a job's iterations become longer than its bundle promises.

An iteration is the time between two calls of the optimizer's `step()`. The clock is read once a
step and a median taken once a window, so that evaluations, checkpoints and slow batches do not
count.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autosync.bundle import Bundle

log = logging.getLogger("autosync")

WINDOW = 25
"""Iterations of a median. The first of a job are left out: they allocate and compile."""
WINDOWS = 2
"""How many in a row must be longer before it is reported."""
TOLERANCE = 1.2
"""Iterations count as longer beyond this times a measured duration, of this job or of trials."""
PREDICTION_TOLERANCE = 1.4
"""The same for a predicted duration: the fastest of many predictions measure 6 to 38 % slower."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Iterations have become longer.

    measured_seconds: the median of the last windows. expected_seconds: what they were compared
        with; source: what that is, in words. since_iteration: the first of these windows (counted
        from `distribute` on), which began at since_time (of `time.time()`).
    """

    measured_seconds: float
    expected_seconds: float
    source: str
    since_iteration: int
    since_time: float

    def __str__(self) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_time))
        return (
            f"iterations take {self.measured_seconds * 1e3:.1f} ms in place of "
            f"{self.expected_seconds * 1e3:.1f} ms ({self.source}), since iteration "
            f"{self.since_iteration} ({clock})"
        )


OnDrift = Callable[[Drift], None]


class DriftWatch:
    """Called behind every `step()`. The duration that was reported becomes the expected one, so
    that only a further slowdown is reported. When iterations recover, so does the expectation.

    expected_seconds: None takes it from the job's own first windows.
    """

    def __init__(
        self,
        expected_seconds: float | None,
        source: str,
        tolerance: float,
        on_drift: OnDrift,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._least = self._expected = expected_seconds
        self._source = source
        self._tolerance = tolerance
        self._on_drift = on_drift
        self._clock = clock
        self._iteration = 0
        self._times: list[float] = []
        self._longer: list[tuple[float, int, float]] = []
        self._own: list[float] = []

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        times = self._times
        times.append(self._clock())
        if len(times) > WINDOW:
            self._end_window()

    def _end_window(self) -> None:
        times = self._times
        self._times = times[-1:]
        first, self._iteration = self._iteration, self._iteration + WINDOW
        if first == 0:
            return
        seconds = median(b - a for a, b in pairwise(times))
        if self._expected is None:
            self._learn(seconds)
        elif seconds <= self._expected * self._tolerance:
            self._longer.clear()
            if self._least is not None and seconds * self._tolerance < self._expected:
                self._expected = max(self._least, seconds)
        else:
            began = time.time() - (times[-1] - times[0])
            self._longer.append((seconds, first, began))
            if len(self._longer) >= WINDOWS:
                self._report()

    def _learn(self, seconds: float) -> None:
        self._own.append(seconds)
        if len(self._own) >= WINDOWS:
            self._least = self._expected = median(self._own)

    def _report(self) -> None:
        assert self._expected is not None
        measured = median(seconds for seconds, _, _ in self._longer)
        _, iteration, began = self._longer[0]
        drift = Drift(measured, self._expected, self._source, iteration, began)
        self._longer.clear()
        self._expected = measured
        self._on_drift(drift)


def watch_iterations(
    optimizer: Optimizer, shipped: Bundle, falls_back: bool, logs: bool, on_drift: OnDrift | None
) -> RemovableHandle:
    """Watch the optimizer's iterations until the handle is removed.

    falls_back: torch's DDP runs in place of the bundle's plan. logs: whether this rank
    logs a drift; every rank calls `on_drift`.
    """

    again = how_to_search_again(shipped, falls_back)

    def report(drift: Drift) -> None:
        if logs:
            log.warning("%s; %s", drift, again)
        if on_drift is not None:
            on_drift(drift)

    return optimizer.register_step_post_hook(DriftWatch(*expectation(shipped, falls_back), report))


def how_to_search_again(shipped: Bundle, falls_back: bool) -> str:
    """In words. `fully_shard` cannot be taken off a model, and is tuned on a plain one."""
    if shipped.plan.sharding is None or falls_back:
        return "`autosync.tune(..., since=...)` searches again"
    return (
        '`autosync.tune(..., space="fsdp2", since=...)` searches again in the next run, before its '
        "first step and before a checkpoint is loaded"
    )


def expectation(shipped: Bundle, falls_back: bool) -> tuple[float | None, str, float]:
    """What iterations should take by the bundle's evidence, what says so, and the tolerance."""
    evidence = shipped.evidence
    measured = evidence.ddp_step_seconds if falls_back else evidence.step_seconds
    if measured is not None:
        where = f" on {evidence.measured_on}" if evidence.measured_on else ""
        return measured, f"measured{where}", TOLERANCE
    if evidence.predicted_seconds is not None and not falls_back:
        return evidence.predicted_seconds, "predicted", PREDICTION_TOLERANCE
    return None, "the job's first iterations", TOLERANCE
