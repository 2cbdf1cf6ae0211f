"""Which passes a pool measures again, what it counts around them, and which crews it keeps."""

import time
from pathlib import Path
from typing import Any

import pytest

from autosync.trials.contract import TrialRequest, TrialResult
from autosync.trials.live.live_pass import LivePass
from autosync.trials.live.live_pool import JobPool
from autosync.trials.measurement import Measurement
from autosync.trials.pool import process_pool as module
from autosync.trials.pool.machine_lock import MachineLock
from autosync.trials.pool.process_pool import ProcessPool
from tests.autosync.trials.stand_in import SENT_BYTES, StandIns
from tests.autosync.trials.strategies import ddp, small_domain


def run(pool: ProcessPool, passes: int = 1, key: str = "a") -> TrialResult:
    bundle = ddp(pool.workload.domain)
    return pool.run(TrialRequest(key, bundle, warmup=1, iterations=3, passes=passes))


def test_a_loaded_pass_is_measured_again_and_the_quiet_one_counts() -> None:
    ins = StandIns([(0.01, 0.5), (0.02, 0.0)])
    pool = ins.pool()
    result = run(pool)
    assert result.step_seconds == pytest.approx(0.02)
    assert result.load == 0.0
    assert len(result.iteration_seconds) == 3
    assert pool.repeated == 1


def test_where_load_stays_the_least_loaded_of_three_counts() -> None:
    ins = StandIns([(0.01, 0.5), (0.02, 0.3), (0.03, 0.4)])
    result = run(ins.pool())
    assert result.step_seconds == pytest.approx(0.02)
    assert result.load == pytest.approx(0.3)


def test_a_quiet_pass_is_measured_once() -> None:
    ins = StandIns([(0.01, 0.1)])
    pool = ins.pool()
    assert run(pool).error is None
    assert pool.repeated == 0
    assert [worker.trials for worker in ins.workers] == [1, 1]


def test_passes_that_disagree_are_followed_by_one_more() -> None:
    agreeing = StandIns([(0.01, 0.0), (0.0104, 0.0)])
    assert len(run(agreeing.pool(), passes=2).iteration_seconds) == 6
    differing = StandIns([(0.01, 0.0), (0.011, 0.0), (0.0105, 0.0)])
    result = run(differing.pool(), passes=2)
    assert len(result.iteration_seconds) == 9
    assert result.step_seconds == pytest.approx(0.0105)


def test_periods_that_spread_are_contaminated_too() -> None:
    def contamination(*periods: float) -> float:
        return Measurement(periods, 0.0, 0.0, 0, (), None).contamination

    assert contamination(1.0, 1.01, 1.02) < 1
    assert contamination(1.0, 1.0, 1.2) > 1


def test_only_load_is_waited_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waits: list[Any] = []
    monkeypatch.setattr(module, "wait_until_quiet", lambda *given: waits.append(given))
    run(StandIns([(0.01, 0.5), (0.01, 0.0)]).pool(turns=MachineLock(tmp_path)))
    assert len(waits) == 1
    run(StandIns([(0.01, 0.0)]).pool(turns=MachineLock(tmp_path)))
    assert len(waits) == 1


def test_what_the_workers_document_takes_is_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.scaled_bundle

    def slow(*given: Any) -> Any:
        time.sleep(0.05)
        return original(*given)

    monkeypatch.setattr(module, "scaled_bundle", slow)
    # a stand-in takes less time than the iterations that it tells of: nothing else is overhead
    assert run(StandIns([(1.0, 0.0)]).pool()).overhead_seconds >= 0.05


def test_bytes_are_told_where_every_node_has_a_counter_of_its_own() -> None:
    def sent(hosts: tuple[str, str], **others: Any) -> tuple[int, ...]:
        return run(StandIns([(0.01, 0.0)], hosts).pool(**others)).sent_bytes

    assert sent(("a", "b"), links="cluster") == (SENT_BYTES, SENT_BYTES)
    assert sent(("a", "a"), links="cluster") == ()
    assert sent(("a", "a"), links="shaped") == (SENT_BYTES, SENT_BYTES)
    assert sent(("a", "a"), links="loopback") == ()


@pytest.mark.parametrize("error", [OSError("no more processes"), RuntimeError("no more threads")])
def test_half_a_crew_is_not_kept(error: Exception) -> None:
    ins = StandIns([(0.01, 0.0)], refusals=[error])
    pool = ins.pool()
    with pytest.raises(type(error), match="no more"):
        run(pool)
    assert [worker.killed for worker in ins.workers] == [True]
    assert pool.worker_pids() == []
    assert run(pool).error is None
    assert [worker.killed for worker in ins.workers] == [True, False, False]


@pytest.mark.parametrize(
    ("errors", "kind", "kept"),
    [
        ({0: "refused", 1: "refused"}, "refused", True),
        ({0: "crashed", 1: "refused"}, "refused", False),  # a crash may be what the refusal did
        ({0: "crashed", 1: "crashed"}, "crashed", False),
        ({0: "refused", 1: "out_of_memory"}, "out_of_memory", False),
        ({1: "crashed"}, "crashed", False),
    ],
)
def test_only_what_all_refuse_alike_leaves_them_warm(
    errors: dict[int, str], kind: str, kept: bool
) -> None:
    ins = StandIns([(0.01, 0.0)], errors=errors)
    result = run(ins.pool())
    assert result.error is not None
    assert result.error.kind == kind
    assert f"{kind} on purpose" in result.error.message
    assert [worker.killed for worker in ins.workers] == [not kept, not kept]


def test_a_running_jobs_loaded_pass_is_measured_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def live(load: float) -> LivePass:
        return LivePass((0.01,) * 3, load, 0.0, None, (), (), None)

    loads = [0.5, 0.3, 0.1, 0.5]
    monkeypatch.setattr(JobPool, "_pass", lambda self, request: live(loads.pop(0)))
    pool = JobPool(None, "job")  # type: ignore[arg-type]
    request = TrialRequest("a", ddp(small_domain()), passes=2)
    assert [one.load for one in pool._passes(request)] == [0.3, 0.1]
    assert loads == [0.5]
