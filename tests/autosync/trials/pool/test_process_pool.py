"""The contract suite on this machine's own launchers; and what may befall workers, where only the
launcher `local` need show it."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.trials.contract import TrialRequest
from autosync.trials.pool.process_pool import ProcessPool
from tests.autosync.trials.contract_suite import (
    PoolContract,
    SecondNode,
    assert_failed,
    assert_gone,
    trial,
    until_gone,
)
from tests.autosync.trials.strategies import ddp, mixed

pytestmark = pytest.mark.usefixtures("marked")  # before the pool, whose processes the suite finds


@pytest.mark.parametrize("pool", ["local"], indirect=True)  # elsewhere a prefix may be their parent
def test_workers_run_under_the_batch_policy(pool: ProcessPool) -> None:
    pool.warm_up()
    assert {os.sched_getscheduler(pid) for pid in pool.worker_pids()} == {os.SCHED_BATCH}


@pytest.mark.parametrize("pool", ["local"], indirect=True)  # restarts take seconds
@pytest.mark.parametrize(
    ("key", "kind", "words"),
    [
        ("crash:1", "crashed", "crashed on purpose"),
        ("exit:0", "crashed", "status 3"),
        ("oom:0", "out_of_memory", "memory"),
    ],
)
def test_a_fault_costs_its_own_trial(pool: ProcessPool, key: str, kind: str, words: str) -> None:
    """One that is killed is the suite's lost node."""
    assert trial(pool, f"before {key}").error is None
    killed = pool.worker_pids()
    assert_failed(trial(pool, key), kind, words)
    assert_gone(killed)


@pytest.mark.parametrize("pool", ["local"], indirect=True)
def test_a_rank_that_fails_under_a_plan_says_so_at_once(pool: ProcessPool) -> None:
    """It takes the plan off only when it has answered: its peers, in the middle of an iteration,
    would not meet it."""
    result = pool.run(TrialRequest("planned/crash:1", mixed(pool.workload.domain)))
    assert_failed(result, "crashed", "crashed on purpose")


@pytest.mark.parametrize("pool", ["local"], indirect=True)
def test_a_stopped_worker_does_not_hold_up_its_launcher(pool: ProcessPool) -> None:
    """A plan larger than a pipe, which the worker does not read."""
    assert trial(pool, "before stop").error is None
    stopped = pool.worker_pids()
    os.kill(stopped[1], signal.SIGSTOP)
    bundle = ddp(pool.workload.domain)
    large = replace(bundle, strategy=replace(bundle.strategy, name="x" * 300_000))
    result = pool.run(TrialRequest("stopped", large, timeout_seconds=1.0))
    assert_failed(result, "timeout")
    assert_gone(stopped)


@pytest.mark.long
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
        cwd=Path(__file__).parents[4],
    )
    assert owner.stdout is not None
    with owner.stdout:
        workers = [int(word) for word in owner.stdout.readline().split()]
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGSTOP)
    owner.kill()
    owner.wait()
    until_gone(workers)


@pytest.fixture
def second_node(pool: ProcessPool) -> SecondNode:
    """Of a node on this machine only its processes can be lost: the next trial starts others."""

    def lose() -> None:
        os.kill(pool.worker_pids()[1], signal.SIGKILL)

    return SecondNode(lose, "rank 1 ended with status -9")


class TestOwnLaunchers(PoolContract):
    """`local` and `testbed`."""
