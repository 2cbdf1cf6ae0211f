"""The contract suite: every launcher's pool passes it."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.trials.contract import TrialRequest, TrialResult
from autosync.trials.machine import process_start
from autosync.trials.pool import ProcessPool
from tests.autosync.trials.strategies import ddp, mixed, small_domain


def trial(pool: ProcessPool, key: str, timeout_seconds: float = 60.0) -> TrialResult:
    bundle = ddp(pool.workload.domain)
    return pool.run(
        TrialRequest(key, bundle, warmup=1, iterations=3, timeout_seconds=timeout_seconds)
    )


def test_a_trial_measures_every_iteration(pool: ProcessPool) -> None:
    result = trial(pool, "plain")
    assert result.error is None
    assert len(result.iteration_seconds) == 3
    assert result.step_seconds == sorted(result.iteration_seconds)[1]
    # 6 operations of 0.2 ms forward and 0.4 ms backward are waited out
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


def test_workers_stay_warm_and_run_the_engine_too(pool: ProcessPool) -> None:
    trial(pool, "plain")
    before = pool.worker_pids()
    result = pool.run(TrialRequest("mixed", mixed(pool.workload.domain), iterations=3, passes=2))
    assert result.error is None
    assert len(result.iteration_seconds) >= 6
    assert pool.worker_pids() == before


@pytest.mark.parametrize("pool", ["local"], indirect=True)  # elsewhere a prefix may be their parent
def test_workers_run_under_the_batch_policy(pool: ProcessPool) -> None:
    pool.warm_up()
    assert {os.sched_getscheduler(pid) for pid in pool.worker_pids()} == {os.SCHED_BATCH}


def test_a_key_runs_once(pool: ProcessPool) -> None:
    assert trial(pool, "plain") is trial(pool, "plain")


def test_one_key_asked_for_twice_at_once_runs_once(pool: ProcessPool) -> None:
    results: list[TrialResult] = []
    askers = [
        threading.Thread(target=lambda: results.append(trial(pool, "asked twice")))
        for _ in range(2)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert results[0].error is None
    assert results[0] is results[1]


def test_a_plan_for_another_cluster_is_refused_and_workers_stay(pool: ProcessPool) -> None:
    before = pool.worker_pids()
    result = pool.run(TrialRequest("too many ranks", ddp(small_domain(3))))
    assert result.error is not None
    assert result.error.kind == "refused"
    assert "3 ranks" in result.error.message
    other = ddp(small_domain())
    renamed = replace(
        other, variables=(replace(other.variables[0], name="w"), *other.variables[1:])
    )
    result = pool.run(TrialRequest("other variables", renamed))
    assert result.error is not None
    assert result.error.kind == "refused"
    assert "w" in result.error.message
    assert pool.worker_pids() == before


@pytest.mark.parametrize("pool", ["local"], indirect=True)  # restarts take seconds
@pytest.mark.parametrize(
    ("key", "kind", "words"),
    [
        ("crash:1", "crashed", "crashed on purpose"),
        ("exit:0", "crashed", "status 3"),
        ("killed:1", "crashed", "status -9"),
        ("oom:0", "out_of_memory", "memory"),
    ],
)
def test_a_fault_costs_its_own_trial(pool: ProcessPool, key: str, kind: str, words: str) -> None:
    assert trial(pool, f"before {key}").error is None
    killed = pool.worker_pids()
    result = trial(pool, key)
    assert result.error is not None
    assert (result.error.kind, result.step_seconds) == (kind, None)
    assert words in result.error.message
    assert_gone(killed)


@pytest.mark.parametrize("pool", ["local"], indirect=True)
def test_a_rank_that_fails_under_a_plan_says_so_at_once(pool: ProcessPool) -> None:
    """It takes the plan off only when it has answered: its peers, in the middle of an iteration,
    would not meet it."""
    result = pool.run(TrialRequest("planned/crash:1", mixed(pool.workload.domain)))
    assert result.error is not None
    assert result.error.kind == "crashed"
    assert "crashed on purpose" in result.error.message


def test_a_hanging_trial_is_killed_with_its_group(pool: ProcessPool) -> None:
    assert trial(pool, "before hang").error is None
    killed = pool.worker_pids()
    result = trial(pool, "hang:1", timeout_seconds=2.0)
    assert result.error is not None
    assert result.error.kind == "timeout"
    assert_gone(killed)


@pytest.mark.parametrize("pool", ["local"], indirect=True)
def test_a_stopped_worker_does_not_hold_up_its_launcher(pool: ProcessPool) -> None:
    """A plan larger than a pipe, which the worker does not read."""
    assert trial(pool, "before stop").error is None
    stopped = pool.worker_pids()
    os.kill(stopped[1], signal.SIGSTOP)
    bundle = ddp(pool.workload.domain)
    large = replace(bundle, strategy=replace(bundle.strategy, name="x" * 300_000))
    result = pool.run(TrialRequest("stopped", large, timeout_seconds=2.0))
    assert result.error is not None
    assert result.error.kind == "timeout"
    assert_gone(stopped)


@pytest.mark.parametrize("pool", ["local"], indirect=True)
def test_cancel_from_another_thread(pool: ProcessPool) -> None:
    assert trial(pool, "before cancel").error is None
    results = []
    runner = threading.Thread(target=lambda: results.append(trial(pool, "hang:0")))
    runner.start()
    while not pool.busy:
        time.sleep(0.01)
    pool.cancel()
    runner.join()
    assert results[0].error.kind == "cancelled"


def test_cancelling_an_idle_pool_changes_nothing(pool: ProcessPool) -> None:
    pool.cancel()
    assert trial(pool, "after idle cancel").error is None


def test_ranks_without_their_launcher_end() -> None:
    """Kill -9 of a process that holds a pool: its workers end too, a stopped one included."""
    script = (
        "from tests.autosync.trials.conftest import launchers\n"
        "from tests.autosync.trials.strategies import ddp, small_domain\n"
        "from autosync.trials.contract import TrialRequest, Workload\n"
        "pool = launchers()['local'].open(Workload(small_domain(), name='faulty'))\n"
        "pool.warm_up()\n"
        "print(*pool.worker_pids(), flush=True)\n"
        "pool.run(TrialRequest('hang:0', ddp(small_domain())))\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert owner.stdout is not None
    with owner.stdout:
        workers = [int(word) for word in owner.stdout.readline().split()]
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGSTOP)
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 60
    while any(process_start(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert_gone(workers)


def assert_gone(processes: list[int]) -> None:
    alive = [process for process in processes if process_start(process) is not None]
    assert processes
    assert not alive, [os.readlink(f"/proc/{process}/exe") for process in alive]
