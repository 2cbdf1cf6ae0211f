"""Pools of one machine measure one at a time; who waits can give up; the dead hold nothing."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autosync.errors import NotSupported
from autosync.trials.contract import TrialRequest, TrialResult, Workload
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.machine import CpuTicks, wait_until_quiet
from autosync.trials.pool.machine_lock import MEASURING, NEXT, GivenUp, MachineLock, machine_turns
from autosync.trials.pool.process_pool import ProcessPool
from tests.autosync.trials.strategies import ddp, small_domain

NEVER = threading.Event()
HOLDER = """
import sys, threading
from pathlib import Path
from autosync.trials.pool.machine_lock import Turns
with Turns(Path(sys.argv[1])).taken(threading.Event()):
    print("mine", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def turns(tmp_path: Path) -> MachineLock:
    return MachineLock(tmp_path)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with LocalLauncher(repeats=0).open(Workload(small_domain())) as opened:
        opened.warm_up()
        yield opened


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.005)


def held(file: Path) -> bool:
    """Whether anyone holds the lock of this file."""
    found = f":{file.stat().st_ino} " if file.exists() else None
    return found is not None and any(
        found in line and "->" not in line for line in Path("/proc/locks").read_text().splitlines()
    )


def test_another_process_waits_until_the_holder_is_gone_killed_or_not(turns: MachineLock) -> None:
    for end in (signal.SIGKILL, None):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(turns.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdin is not None
            assert holder.stdout.readline() == "mine\n"
            entered = threading.Event()

            def enter(entered: threading.Event = entered) -> None:
                with turns.taken(NEVER):
                    entered.set()

            waiting = threading.Thread(target=enter)
            waiting.start()
            until(lambda: held(turns.folder / NEXT))
            assert not entered.is_set()
            if end is not None:
                holder.send_signal(end)
            holder.stdin.close()
            waiting.join()
            assert entered.is_set()


def test_who_has_measured_lets_the_next_go_first(turns: MachineLock) -> None:
    order = []

    def second() -> None:
        with turns.taken(NEVER):
            order.append("b")

    waiting = threading.Thread(target=second)
    with turns.taken(NEVER):
        order.append("a")
        waiting.start()
        until(lambda: held(turns.folder / NEXT))
    with turns.taken(NEVER):
        order.append("a")
    waiting.join()
    assert order == ["a", "b", "a"]


def test_a_removed_lock_file_is_locked_anew(turns: MachineLock) -> None:
    """Cleaners of temporary folders: who waits on the old file must not share the turn."""
    entered = threading.Event()

    def enter() -> None:
        with turns.taken(NEVER):
            entered.set()

    waiting = threading.Thread(target=enter)
    with turns.taken(NEVER):
        waiting.start()
        until(lambda: held(turns.folder / NEXT))
        (turns.folder / MEASURING).unlink()
        third = threading.Event()
        third.set()
        with pytest.raises(GivenUp):  # the one that waits is still the next
            turns.taken(third).__enter__()
    waiting.join()
    assert entered.is_set()
    assert (turns.folder / MEASURING).exists()


def test_a_lock_file_that_cannot_be_opened_is_named(turns: MachineLock) -> None:
    (turns.folder / NEXT).symlink_to(turns.folder / "elsewhere")
    with pytest.raises(NotSupported, match=NEXT), turns.taken(NEVER):
        pass
    assert not (turns.folder / "elsewhere").exists()


def test_all_users_share_the_files_of_this_machine() -> None:
    turns = machine_turns()
    with turns.taken(NEVER):
        modes = {(turns.folder / name).stat().st_mode & 0o777 for name in (NEXT, MEASURING)}
    assert modes == {0o444}


def run(pool: ProcessPool, key: str, into: list[TrialResult], timeout_seconds: float) -> None:
    into.append(
        pool.run(
            TrialRequest(key, ddp(pool.workload.domain), 1, 3, timeout_seconds=timeout_seconds)
        )
    )


def test_waiting_for_a_turn_is_no_part_of_a_trial(pool: ProcessPool, turns: MachineLock) -> None:
    pool.turns = turns
    results: list[TrialResult] = []
    run(pool, "the first one takes its time", results, 60.0)
    runner = threading.Thread(target=run, args=(pool, "waits", results, 3.0))
    with turns.taken(NEVER):
        runner.start()
        until(lambda: held(turns.folder / NEXT))
        time.sleep(3.2)  # longer than the trial may take
    runner.join()
    assert results[1].error is None
    assert results[1].overhead_seconds < 3.0


def test_cancelled_while_it_waits_it_costs_no_worker(pool: ProcessPool, turns: MachineLock) -> None:
    pool.turns = turns
    before = pool.worker_pids()
    results: list[TrialResult] = []
    runner = threading.Thread(target=run, args=(pool, "gives up", results, 60.0))
    with turns.taken(NEVER):
        runner.start()
        until(lambda: held(turns.folder / NEXT))
        pool.cancel()
        runner.join()
    assert results[0].error is not None
    assert results[0].error.kind == "cancelled"
    run(pool, "gives up", results, 60.0)  # a cancelled trial was not run: its key may be
    assert results[1].error is None
    assert pool.worker_pids() == before


def test_a_burst_of_load_is_waited_out() -> None:
    readings = iter([CpuTicks(0, 0), CpuTicks(9, 10), CpuTicks(9.2, 20)])
    assert wait_until_quiet(0.12, 60.0, NEVER, lambda: next(readings))
    assert next(readings, None) is None


def test_load_that_stays_and_a_cancelled_wait_end_it() -> None:
    busy = (CpuTicks(tick, tick) for tick in range(10_000))
    assert not wait_until_quiet(0.12, 0.6, NEVER, lambda: next(busy))
    given_up = threading.Event()
    given_up.set()
    assert not wait_until_quiet(0.12, 3600.0, given_up, lambda: next(busy))
