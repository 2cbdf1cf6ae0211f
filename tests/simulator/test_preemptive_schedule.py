from itertools import permutations

import numpy as np
import pytest

from autosync.simulator.preemptive_schedule import (
    Run,
    least_end,
    longest_tail_first,
    preemptive_runs,
)


def best_by_force(ready: list[int], needs: list[int], tails: list[int]) -> int:
    """Unit time slots, every order of slots: the machine never idles while a job is ready."""
    slots = [job for job, need in enumerate(needs) for _ in range(need)]
    best = 10**9
    for order in set(permutations(slots)):
        now, end = 0, 0
        for job in order:
            now = max(now, ready[job]) + 1
            end = max(end, now + tails[job])
        best = min(best, end)
    return best


def test_the_longest_tail_first_is_the_best_interruptible_schedule() -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        ready, tails = rng.integers(0, 7, 3), rng.integers(0, 9, 3)
        needs = rng.integers(1, 4, 3)
        exact = longest_tail_first(*(array.astype(float) for array in (ready, needs, tails)))
        assert exact == best_by_force(ready.tolist(), needs.tolist(), tails.tolist())


@pytest.mark.parametrize("least_seconds", [0.0, 2.0])
def test_runs_serve_every_job_whole_and_one_at_a_time(least_seconds: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        ready, needs, tails = (rng.integers(1, 30, 12).astype(float) for _ in range(3))
        runs = preemptive_runs(ready, needs, tails, least_seconds)
        served = np.zeros(12)
        for run, after in zip(runs, [*runs[1:], None], strict=True):
            assert run.begin_seconds >= ready[run.job]
            served[run.job] += run.end_seconds - run.begin_seconds
            assert run.end_seconds - run.begin_seconds >= min(least_seconds, needs[run.job])
            assert after is None or after.begin_seconds >= run.end_seconds
            assert after is None or after.job != run.job or after.begin_seconds > run.end_seconds
        np.testing.assert_allclose(served, needs)


def test_an_urgent_job_interrupts_unless_the_run_would_be_too_short() -> None:
    ready, needs, tails = np.array([0.0, 3.0]), np.array([10.0, 2.0]), np.array([0.0, 9.0])
    assert preemptive_runs(ready, needs, tails) == [Run(0, 0, 3), Run(1, 3, 5), Run(0, 5, 12)]
    waited = [Run(0, 0, 4), Run(1, 4, 6), Run(0, 6, 12)]
    assert preemptive_runs(ready, needs, tails, 4.0) == waited
    assert preemptive_runs(ready, needs, tails, 8.0) == [Run(0, 0, 10), Run(1, 10, 12)]


def test_no_jobs_end_at_once() -> None:
    nothing = np.empty(0)
    assert longest_tail_first(nothing, nothing, nothing) == 0.0


def test_no_schedule_ends_before_the_least_end() -> None:
    rng = np.random.default_rng(5)
    for jobs in (1, 2, 5, 40):
        for _ in range(30):
            ready, needs, tails = rng.random((3, jobs))
            end = longest_tail_first(ready, needs, tails)
            assert 0.3 * end < least_end(ready, needs, tails) <= end
    assert least_end(*np.ones((3, 1))) == pytest.approx(3.0)
