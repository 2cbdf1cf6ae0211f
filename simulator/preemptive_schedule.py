"""The best schedule of one machine whose jobs may be interrupted: ready times, needs and tails."""

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

ROUNDING = 1e-9
"""Share by which a bound stays below what is summed in another order."""


class Run(NamedTuple):
    """A stretch of time for which the machine serves one job."""

    job: int
    begin_seconds: float
    end_seconds: float


def preemptive_runs(ready: F64, needs: F64, tails: F64, least_seconds: float = 0.0) -> list[Run]:
    """What the machine serves when, such that the last tail ends soonest; neighbours differ.

    Serving the ready job with the longest tail is exact; it solves what PACE states as a linear
    program (its costs (TN)^t are beyond any solver). ready, needs, tails: `(jobs,)` seconds.

    least_seconds: an interruption that would leave a shorter run, before or after, waits or does
        not happen. Exact for 0.
    """
    order = np.argsort(ready, kind="stable").tolist()
    ready_at, left, tail = ready[order].tolist(), needs.tolist(), tails.tolist()
    waiting: list[tuple[float, int]] = []
    runs: list[Run] = []
    now, coming = -np.inf, 0
    while waiting or coming < len(order):
        if not waiting:
            now = max(now, ready_at[coming])
        while coming < len(order) and ready_at[coming] <= now:
            heappush(waiting, (-tail[order[coming]], order[coming]))
            coming += 1
        job = waiting[0][1]
        goes_on = bool(runs) and runs[-1].job == job and runs[-1].end_seconds == now
        begin = runs.pop().begin_seconds if goes_on else now
        until = ready_at[coming] if coming < len(order) else np.inf
        until = max(until, begin + least_seconds)
        if now + left[job] <= until + least_seconds:
            now += left[job]
            heappop(waiting)
        else:
            left[job] -= until - now
            now = until
        runs.append(Run(job, begin, now))
    return runs


def longest_tail_first(ready: F64, needs: F64, tails: F64) -> float:
    """The least time to the last tail's end on one machine that may interrupt its jobs."""
    runs = preemptive_runs(ready, needs, tails)
    return max((run.end_seconds + float(tails[run.job]) for run in runs), default=0.0)


def least_end(ready: F64, needs: F64, tails: F64) -> float:
    """Of one job or more, not above `longest_tail_first` and far sooner found: a job ends with its
    own tail at the soonest, and the last of all with the shortest behind what all need."""
    alone = (ready + needs + tails).max()
    together = ready.min() + needs.sum() + tails.min()
    return float(max(alone, together)) * (1.0 - ROUNDING)
