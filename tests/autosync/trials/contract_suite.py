"""The contract of every launcher's pool: one suite, which each launcher's tests run on its own.

A new launcher gets it by a subclass of `PoolContract` in its test module, beside two fixtures,
`pool` (see there) and `second_node`. Tests of its own on the same pool stand above the subclass: in
the end the suite loses a node and closes the pool.

The pool of a running job does not run it: its ranks are the user's own, which nobody starts here,
cancels, kills or takes a node from, and a trial that hangs ends with its collectives' timeout or
before its next step. `tests/search/live/test_live_contract.py` shows what applies there.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from autosync.cancellation import CancellationToken, Cancelled, cancelled_by
from autosync.strategy import ParameterServer
from autosync.trials.contract import TrialRequest, TrialResult
from autosync.trials.pool.process_pool import ProcessPool
from tests.autosync.trials.conftest import MARK
from tests.autosync.trials.strategies import ddp, lagging, mixed, small_domain
from tests.waiting import lives, until

SETTLED_SECONDS = 0.2
"""From the beginning of a trial on warm workers until they are in the middle of it."""

MANY_ITERATIONS = 100
"""Of 3.6 ms at the least: such a trial outlives `SETTLED_SECONDS`."""


@dataclass(frozen=True, slots=True)
class SecondNode:
    """The node of rank 1, and what is lost with it.

    lose: takes it away with all that runs there.
    named: what the error of the trial at hand says of it.
    later: kind and words of the error of the trials after that; None where the node is there again.
    """

    lose: Callable[[], None]
    named: str
    later: tuple[str, str] | None = None


class PoolContract:
    """pool: open, and shared by the module (a torch process takes seconds); two ranks of the
    workload `faulty` on a node each, at a byte scale of 0.5, that carry `MARK`; see
    `benchmarks.faults.faulty` for what its keys do. What costs a restart of the workers comes
    last."""

    def test_a_trial_measures_every_iteration(self, pool: ProcessPool) -> None:
        result = trial(pool, "plain")
        assert result.error is None
        assert len(result.iteration_seconds) == 3
        assert result.step_seconds == sorted(result.iteration_seconds)[1]
        # 6 operations of 0.2 ms forward and 0.4 ms backward are slept
        assert min(result.iteration_seconds) > 0.8 * 6 * 6e-4
        assert result.launcher == pool.description
        assert result.byte_scale == 0.5
        assert {name for name, _ in result.versions} == {"torch", "autosync", "python"}
        assert result.peak_memory_bytes is not None
        assert result.peak_memory_bytes > 2**20
        if pool.shaped:  # two ranks: each sends half of the gradients twice; 0.5 is the byte scale
            payload = pool.workload.domain.graph.size_bytes * 0.5
            assert len(result.sent_bytes) == 2
            assert all(payload < sent < 1.5 * payload + 10_000 for sent in result.sent_bytes)

    def test_workers_stay_warm_and_run_the_engine_too(self, pool: ProcessPool) -> None:
        trial(pool, "plain")
        before = pool.worker_pids()
        request = TrialRequest("mixed", mixed(pool.workload.domain), iterations=3, passes=2)
        result = pool.run(request)
        assert result.error is None
        assert len(result.iteration_seconds) >= 6
        assert pool.worker_pids() == before
        assert set(before) <= set(marked_processes())  # whose absence the last test looks for

    def test_plans_that_lag_run(self, pool: ProcessPool) -> None:
        bundle = lagging(pool.workload.domain, ParameterServer(1, 0), 2)
        result = pool.run(TrialRequest("late", bundle, iterations=3))
        assert result.error is None
        assert len(result.iteration_seconds) == 3
        # what clocks leave unequal is equal again: else this says that it was not synchronized
        assert pool.run(TrialRequest("after", ddp(pool.workload.domain))).error is None

    def test_a_key_runs_once(self, pool: ProcessPool) -> None:
        assert trial(pool, "plain") is trial(pool, "plain")

    def test_a_run_still_alive_is_adopted_by_its_key(self, pool: ProcessPool) -> None:
        with under_way(pool, "asked twice", MANY_ITERATIONS) as results:
            adopted = trial(pool, "asked twice")
        assert results[0].error is None
        assert results[0] is adopted
        assert len(adopted.iteration_seconds) == MANY_ITERATIONS  # the first one's

    def test_a_plan_for_another_cluster_is_refused_and_workers_stay(
        self, pool: ProcessPool
    ) -> None:
        pool.warm_up()
        before = pool.worker_pids()
        result = pool.run(TrialRequest("too many ranks", ddp(small_domain(3))))
        assert_failed(result, "refused", "3 ranks")
        other = ddp(small_domain())
        renamed = replace(
            other, variables=(replace(other.variables[0], name="w"), *other.variables[1:])
        )
        assert_failed(pool.run(TrialRequest("other variables", renamed)), "refused", "w")
        assert pool.worker_pids() == before

    def test_a_hanging_trial_is_killed_with_its_group(self, pool: ProcessPool) -> None:
        assert trial(pool, "before hang").error is None
        killed = pool.worker_pids()
        assert_failed(trial(pool, "hang:1", timeout_seconds=1.0), "timeout")
        assert_gone(killed)

    def test_a_token_ends_what_runs(self, pool: ProcessPool) -> None:
        """Of the thread that asked, wherever its trial is: here the workers are still starting."""
        assert cancelled_in_the_middle(pool, "ended by its token/hang:0") == ["by hand"]
        assert pool.worker_pids() == []

    def test_a_lost_node_costs_its_trial_and_is_named(
        self, pool: ProcessPool, second_node: SecondNode
    ) -> None:
        assert trial(pool, "before loss").error is None
        workers = pool.worker_pids()
        with under_way(pool, "on a lost node/hang:0") as results:
            second_node.lose()
        assert_failed(results[0], "crashed", second_node.named)
        until_gone(workers)
        later = trial(pool, "after loss")
        if second_node.later is None:
            assert later.error is None
        else:
            assert_failed(later, *second_node.later)

    def test_a_closed_pool_refuses_and_leaves_nothing_behind(self, pool: ProcessPool) -> None:
        pool.close()  # as the fixture will: it may be closed twice
        assert_failed(trial(pool, "after the end"), "refused", "closed")
        until(lambda: not marked_processes(), "the end of all its processes")


def trial(
    pool: ProcessPool, key: str, iterations: int = 3, timeout_seconds: float = 200.0
) -> TrialResult:
    bundle = ddp(pool.workload.domain)
    return pool.run(TrialRequest(key, bundle, 1, iterations, timeout_seconds=timeout_seconds))


def assert_failed(result: TrialResult, kind: str, *words: str) -> None:
    """words: what its message says, among others."""
    assert result.error is not None
    assert (result.error.kind, result.step_seconds) == (kind, None), result.error
    for each in words:
        assert each in result.error.message


def cancelled_in_the_middle(pool: ProcessPool, key: str) -> list[str]:
    """The reasons with which a trial ended whose thread's token was cancelled."""
    token, ended = CancellationToken(), list[str]()

    def run() -> None:
        try:
            with cancelled_by(token):
                trial(pool, key)
        except Cancelled as cancelled:
            ended.append(cancelled.reason)

    runner = threading.Thread(target=run)
    runner.start()
    until(lambda: pool.busy or not runner.is_alive(), "a trial under way")
    time.sleep(SETTLED_SECONDS)
    token.cancel("by hand")
    runner.join()
    return ended


@contextmanager
def under_way(pool: ProcessPool, key: str, iterations: int = 3) -> Iterator[list[TrialResult]]:
    """A trial on a thread of its own, in the middle of which the block begins; after the block its
    result is in the list."""
    results: list[TrialResult] = []
    runner = threading.Thread(target=lambda: results.append(trial(pool, key, iterations)))
    runner.start()
    try:
        while runner.is_alive() and not pool.busy:
            time.sleep(0.01)
        time.sleep(SETTLED_SECONDS)
        yield results
    finally:
        runner.join()


def until_gone(processes: list[int]) -> None:
    """For those that end by themselves, once they find that they are alone."""
    assert processes
    until(lambda: not any(map(lives, processes)), f"the end of {processes}")


def assert_gone(processes: list[int]) -> None:
    alive = [process for process in processes if lives(process)]
    assert processes
    assert not alive, [Path(f"/proc/{process}/exe").readlink() for process in alive]


def marked_processes() -> list[int]:
    """All that live with `MARK` in their environment."""
    mark = "=".join(MARK).encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended, or belongs to someone else
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
