"""Which passes a trial measures again, what counts around them, and which workers survive."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from autosync.bundle import with_extension
from autosync.extensions.offload.document import Offload
from autosync.strategy import AllReduce
from autosync.trials.commands import Command
from autosync.trials.contract import (
    ErrorKind,
    TrialError,
    TrialFailed,
    TrialRequest,
    TrialResult,
    Workload,
)
from autosync.trials.live.job import LiveJob
from autosync.trials.live.job_pool import JobPool
from autosync.trials.measurement import PassMeasurement
from autosync.trials.pool import process_pool
from autosync.trials.pool.machine_lock import MachineLock
from autosync.trials.pool.process_pool import ProcessPool
from autosync.trials.pool.worker_group import WorkerGroup
from autosync.trials.pool.worker_process import WorkerAnswer
from autosync.trials.request_names import PREDICTED_WAITS
from autosync.trials.trial_procedure import TrialPool
from tests.autosync.trials.contract_suite import assert_failed
from tests.autosync.trials.fake_workers import SENT_BYTES, FakeWorkers
from tests.autosync.trials.strategies import ddp, lagging, small_domain


def run(pool: ProcessPool, passes: int = 1, key: str = "a") -> TrialResult:
    bundle = ddp(pool.workload.domain)
    return pool.run(TrialRequest(key, bundle, warmup=1, iterations=3, passes=passes))


def test_a_loaded_pass_is_measured_again_and_the_quiet_one_counts() -> None:
    pool = FakeWorkers([(0.01, 0.5), (0.02, 0.0)]).pool()
    result = run(pool)
    assert result.step_seconds == pytest.approx(0.02)
    assert result.load == 0.0
    assert len(result.iteration_seconds) == 3
    assert pool.repeated == 1


def test_the_least_loaded_of_three_passes_counts() -> None:
    result = run(FakeWorkers([(0.01, 0.5), (0.02, 0.3), (0.03, 0.4)]).pool())
    assert result.step_seconds == pytest.approx(0.02)
    assert result.load == pytest.approx(0.3)


def test_a_quiet_pass_is_measured_once() -> None:
    group = FakeWorkers([(0.01, 0.1)])
    pool = group.pool()
    assert run(pool).error is None
    assert pool.repeated == 0
    assert [worker.trials for worker in group.workers] == [1, 1]


@pytest.mark.parametrize(
    ("expected_seconds", "may_take"),
    [(0.0, 60.0), (2.0, 60.0 + 3 * (4 * 2.0 * 8)), (math.inf, 60.0), (math.nan, 60.0)],
)
def test_a_pass_that_is_predicted_to_take_long_has_that_time(
    monkeypatch: pytest.MonkeyPatch, expected_seconds: float, may_take: float
) -> None:
    """Of four iterations, eight times slower than the domain's."""
    asked: list[float] = []
    ask = WorkerGroup.ask

    def noted(
        group: WorkerGroup, command: Command, answered_by: type[Any], timeout_seconds: float
    ) -> list[Any]:
        asked.append(timeout_seconds)
        return ask(group, command, answered_by, timeout_seconds)

    monkeypatch.setattr(WorkerGroup, "ask", noted)
    pool = FakeWorkers([(0.01, 0.0)]).pool()
    pool.workload = replace(pool.workload, time_scale=8.0)
    bundle = ddp(pool.workload.domain)
    request = TrialRequest("a", bundle, 1, 3, expected_seconds=expected_seconds)
    assert pool.run(request).error is None
    assert asked == [may_take]


def test_passes_that_disagree_are_followed_by_one_more() -> None:
    agreeing = FakeWorkers([(0.01, 0.0), (0.0104, 0.0)])
    assert len(run(agreeing.pool(), passes=2).iteration_seconds) == 6
    differing = FakeWorkers([(0.01, 0.0), (0.011, 0.0), (0.0105, 0.0)])
    result = run(differing.pool(), passes=2)
    assert len(result.iteration_seconds) == 9
    assert result.step_seconds == pytest.approx(0.0105)


@pytest.fixture
def quiet_waits(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[Any]]:
    """Waits for a quiet machine that end at once, as said; what was waited for is in the list."""

    def waits(becomes_quiet: bool) -> list[Any]:
        asked: list[Any] = []

        def wait(*given: Any) -> bool:
            asked.append(given)
            return becomes_quiet

        monkeypatch.setattr(process_pool, "wait_until_quiet", wait)
        return asked

    return waits


def test_only_load_is_waited_out(quiet_waits: Callable[[bool], list[Any]], tmp_path: Path) -> None:
    """And said: a tuning that is stopped meanwhile shows why nothing was measured."""
    waits, said = quiet_waits(True), list[str]()
    on_machine = {"machine_lock": MachineLock(tmp_path), "on_wait": said.append}
    run(FakeWorkers([(0.01, 0.5), (0.01, 0.0)]).pool(**on_machine))
    assert len(waits) == 1
    assert said == [process_pool.LOADED]
    run(FakeWorkers([(0.01, 0.0)]).pool(**on_machine))
    assert len(waits) == len(said) == 1


def test_a_load_that_stays_is_waited_for_once_until_it_has_gone(
    quiet_waits: Callable[[bool], list[Any]], tmp_path: Path
) -> None:
    waits = quiet_waits(False)
    loads = [0.5] * 6 + [0.0] + [0.5] * 3
    pool = FakeWorkers([(0.01, load) for load in loads]).pool(machine_lock=MachineLock(tmp_path))
    run(pool, key="all loaded")
    assert len(waits) == 1
    run(pool, key="all loaded still")
    assert len(waits) == 1
    assert run(pool, key="quiet").load == 0.0
    run(pool, key="loaded again")
    assert len(waits) == 2


@dataclass
class ScriptedPool(TrialPool):
    """Answers with these passes, one after another; an exception is raised."""

    script: list[PassMeasurement | Exception]
    prepare_seconds: float = 0.0
    trains_model: bool = False
    resets: int = 0
    warmups: list[int] = field(default_factory=list)
    repeats: int = field(default=0, kw_only=True)

    @property
    def description(self) -> str:
        return "scripted"

    @property
    def world_size(self) -> int:
        return 2

    @property
    def trains(self) -> bool:
        return self.trains_model

    def prepare(self, request: TrialRequest) -> float:
        return self.prepare_seconds

    def run_pass(self, request: TrialRequest, after_load: bool) -> PassMeasurement:
        self.warmups.append(request.warmup)
        given = self.script.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    def reset_ranks(self) -> None:
        self.resets += 1

    def close(self) -> None:
        """Nothing was started."""


def measured(load: float, overhead_seconds: float = 0.0) -> PassMeasurement:
    return PassMeasurement((0.01,) * 3, load, overhead_seconds, None)


def request(key: str = "a", passes: int = 1) -> TrialRequest:
    return TrialRequest(key, ddp(small_domain()), passes=passes)


def test_preparing_the_workers_counts_as_overhead() -> None:
    pool = ScriptedPool([measured(0.0, 0.2), measured(0.0, 0.4)], prepare_seconds=1.0)
    result = pool.run(request(passes=2))
    assert result.overhead_seconds == pytest.approx((1.0 + 0.2 + 0.4) / 2)


@pytest.mark.parametrize(("trains", "warmups"), [(False, [2, 5]), (True, [2, 14])])
def test_a_plan_that_lags_warms_up_until_it_is_filled(trains: bool, warmups: list[int]) -> None:
    pool = ScriptedPool([measured(0.0), measured(0.0)], trains_model=trains)
    for staleness in (0, 3):
        bundle = lagging(small_domain(), AllReduce(0), staleness)
        pool.run(TrialRequest(f"s = {staleness}", bundle, warmup=2))
    assert pool.warmups == warmups


@pytest.mark.parametrize(
    ("trains", "launcher"), [(True, "scripted"), (False, f"scripted, {PREDICTED_WAITS}")]
)
def test_swapping_trials_warm_up_longer_and_state_their_caveat(trains: bool, launcher: str) -> None:
    pool = ScriptedPool([measured(0.0), measured(0.0)], trains_model=trains)
    swapped = pool.run(TrialRequest("swapped", with_extension(ddp(small_domain()), Offload(10**9))))
    plain = pool.run(request("plain"))
    assert pool.warmups == [4, 2]
    assert (swapped.launcher, plain.launcher) == (launcher, "scripted")


def test_workers_are_told_how_long_swapping_lets_compute_wait() -> None:
    group = FakeWorkers([(0.01, 0.0), (0.01, 0.0)])
    pool = group.pool()
    bundle = with_extension(ddp(pool.workload.domain), Offload(10**9))
    assert pool.run(TrialRequest("swapped", bundle, compute_slowdown=1.5)).error is None
    assert run(pool, key="plain").error is None
    assert [worker.slowdowns for worker in group.workers] == [[1.5, 1.0]] * 2


def test_kernels_do_not_wait_for_what_is_only_predicted() -> None:
    group = FakeWorkers([])
    pool = group.pool()
    pool.workload = Workload(small_domain(), compute="kernels")
    swapped = with_extension(ddp(pool.workload.domain), Offload(10**9))
    assert_failed(pool.run(TrialRequest("swapped", swapped)), "refused", "kernels")
    assert group.workers == []


def test_a_failed_trial_is_not_run_again() -> None:
    pool = ScriptedPool([TrialFailed(TrialError("crashed", "a rank"))])
    failed = pool.run(request())
    assert_failed(failed, "crashed")
    assert pool.resets == 1
    assert pool.run(request()) is failed


def test_defects_are_raised_and_the_ranks_are_reset() -> None:
    pool = ScriptedPool([ZeroDivisionError()])
    with pytest.raises(ZeroDivisionError):
        pool.run(request())
    assert pool.resets == 1


def test_bytes_are_told_where_every_node_has_a_counter_of_its_own() -> None:
    def sent(hosts: tuple[str, str], **others: Any) -> tuple[int, ...]:
        return run(FakeWorkers([(0.01, 0.0)], hosts).pool(**others)).sent_bytes

    assert sent(("a", "b"), links="cluster") == (SENT_BYTES, SENT_BYTES)
    assert sent(("a", "a"), links="cluster") == ()
    assert sent(("a", "a"), links="shaped") == (SENT_BYTES, SENT_BYTES)
    assert sent(("a", "a"), links="loopback") == ()


def test_a_worker_that_ends_between_trials_costs_none() -> None:
    group = FakeWorkers([(0.01, 0.0)])
    pool = group.pool()
    assert run(pool).error is None
    lost = group.workers[1]
    lost.answers.put(WorkerAnswer(lost.rank, None))
    assert run(pool, key="b").error is None
    assert [worker.killed for worker in group.workers] == [True, True, False, False]


@pytest.mark.parametrize("error", [OSError("no more processes"), RuntimeError("no more threads")])
def test_half_a_worker_group_is_killed(error: Exception) -> None:
    group = FakeWorkers([(0.01, 0.0)], refusals=[error])
    pool = group.pool()
    with pytest.raises(type(error), match="no more"):
        run(pool)
    assert [worker.killed for worker in group.workers] == [True]
    assert pool.worker_pids() == []
    assert run(pool).error is None
    assert [worker.killed for worker in group.workers] == [True, False, False]


@pytest.mark.parametrize(
    ("errors", "kind", "stay"),
    [
        ({0: "refused", 1: "refused"}, "refused", True),
        ({0: "over_budget", 1: "over_budget"}, "over_budget", True),
        ({0: "refused", 1: "over_budget"}, "over_budget", True),
        ({0: "crashed", 1: "refused"}, "refused", False),  # a crash may be what the refusal did
        ({0: "crashed", 1: "crashed"}, "crashed", False),
        ({0: "refused", 1: "out_of_memory"}, "out_of_memory", False),
        ({1: "crashed"}, "crashed", False),
    ],
)
def test_only_what_all_refuse_alike_leaves_them_warm(
    errors: dict[int, ErrorKind], kind: str, stay: bool
) -> None:
    group = FakeWorkers([(0.01, 0.0)], errors=errors)
    assert_failed(run(group.pool()), kind, f"{kind} on purpose")
    assert [worker.killed for worker in group.workers] == [not stay, not stay]


def test_a_running_jobs_loaded_pass_is_measured_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = [measured(load) for load in (0.5, 0.3, 0.1, 0.5)]
    monkeypatch.setattr(JobPool, "run_pass", lambda *_, **__: passes.pop(0))
    monkeypatch.setattr(JobPool, "world_size", 2)
    job: LiveJob = None  # type: ignore[assignment]  # no pass reaches it
    result = JobPool(job, "job").run(request(passes=2))
    assert result.load == 0.3
    assert len(passes) == 1


def test_how_much_periods_spread_is_a_running_jobs_own() -> None:
    job: LiveJob = None  # type: ignore[assignment]
    assert JobPool(job, "job").contamination(PassMeasurement((1, 1, 9), 0.0, 0.0, 0)) == 0.0
