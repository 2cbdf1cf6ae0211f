"""Pools of one machine measure one at a time; who waits can give up; the dead hold nothing."""

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autosync.cancellation import CancellationToken, Cancelled, cancelled_by
from autosync.errors import NotSupported
from autosync.trials.contract import Pool, TrialRequest, TrialResult, Workload, reporting_waits
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.machine import CpuTicks, wait_until_quiet
from autosync.trials.pool.machine_lock import (
    MEASURING,
    NEXT,
    MachineLock,
    lock_holder,
    shared_machine_lock,
)
from autosync.trials.pool.process_pool import ProcessPool
from tests.autosync.trials.fake_workers import FakeWorkers
from tests.autosync.trials.strategies import ddp
from tests.waiting import until

HOLDER = """
import sys
from pathlib import Path
from autosync.trials.pool.machine_lock import MachineLock
with MachineLock(Path(sys.argv[1])).held():
    print("mine", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def lock(tmp_path: Path) -> MachineLock:
    return MachineLock(tmp_path)


def locked(file: Path) -> bool:
    """Whether anyone holds the lock of this file."""
    found = f":{file.stat().st_ino} " if file.exists() else None
    return found is not None and any(
        found in line and "->" not in line for line in Path("/proc/locks").read_text().splitlines()
    )


@contextmanager
def holding(lock: MachineLock) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lock until its input ends, or it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "mine\n"
        yield holder
        holder.stdin.close()


@pytest.mark.parametrize("killed", [True, False])
def test_another_process_waits_until_the_holder_is_gone_killed_or_not(
    lock: MachineLock, killed: bool
) -> None:
    entered = threading.Event()

    def enter() -> None:
        with lock.held():
            entered.set()

    waiting = threading.Thread(target=enter)
    with holding(lock) as holder:
        waiting.start()
        until(lambda: locked(lock.folder / NEXT), "one that waits")
        assert not entered.is_set()
        if killed:
            holder.kill()
    waiting.join()
    assert entered.is_set()


def test_the_lock_goes_to_the_one_that_waits(lock: MachineLock) -> None:
    order = []

    def second() -> None:
        with lock.held():
            order.append("b")

    waiting = threading.Thread(target=second)
    with lock.held():
        order.append("a")
        waiting.start()
        until(lambda: locked(lock.folder / NEXT), "one that waits")
    with lock.held():
        order.append("a")
    waiting.join()
    assert order == ["a", "b", "a"]


def test_a_removed_lock_file_is_locked_anew(lock: MachineLock) -> None:
    """Cleaners of temporary folders: who waits on the old file must not hold it, too."""
    entered = threading.Event()

    def enter() -> None:
        with lock.held():
            entered.set()

    waiting = threading.Thread(target=enter)
    with lock.held():
        waiting.start()
        until(lambda: locked(lock.folder / NEXT), "one that waits")
        (lock.folder / MEASURING).unlink()
        third = CancellationToken()
        third.cancel("by hand")
        with pytest.raises(Cancelled), cancelled_by(third):  # the one that waits is still the next
            lock.held().__enter__()
    waiting.join()
    assert entered.is_set()
    assert (lock.folder / MEASURING).exists()


def test_a_lock_file_that_cannot_be_opened_is_named(lock: MachineLock) -> None:
    (lock.folder / NEXT).symlink_to(lock.folder / "elsewhere")
    with pytest.raises(NotSupported, match=NEXT), lock.held():
        pass
    assert not (lock.folder / "elsewhere").exists()


def test_all_users_share_the_files_of_this_machine() -> None:
    lock = shared_machine_lock()
    with lock.held():
        modes = {(lock.folder / name).stat().st_mode & 0o777 for name in (NEXT, MEASURING)}
    assert modes == {0o444}


def test_a_container_whose_root_is_read_only_locks_in_tmp() -> None:
    script = "mount --bind /run/lock /run/lock && mount -o remount,bind,ro /run/lock && exec "
    say = "from autosync.trials.pool.machine_lock import shared_machine_lock as lock; "
    say += "held = lock().held(); held.__enter__(); print(lock().folder)"
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("needs mount namespaces")
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{script} {sys.executable} -c {shlex.quote(say)}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout.strip(), ran.stderr) == ("/tmp", "")


def run(pool: ProcessPool, key: str, into: list[TrialResult], timeout_seconds: float) -> None:
    request = TrialRequest(key, ddp(pool.workload.domain), 1, 3, timeout_seconds=timeout_seconds)
    into.append(pool.run(request))


def test_waiting_for_the_lock_is_no_part_of_a_trial(lock: MachineLock) -> None:
    """A trial's timeout and overhead begin when its workers are asked: not before the lock is
    there."""
    group = FakeWorkers([(0.01, 0.0)])
    pool = group.pool(machine_lock=lock)
    pool.warm_up()
    results: list[TrialResult] = []
    runner = threading.Thread(target=run, args=(pool, "waits", results, 60.0))
    with lock.held():
        runner.start()
        until(lambda: locked(lock.folder / NEXT), "one that waits")
        assert [worker.trials for worker in group.workers] == [0, 0]
    runner.join()
    assert results[0].error is None
    assert [worker.trials for worker in group.workers] == [1, 1]


def test_a_long_wait_says_for_whom(lock: MachineLock) -> None:
    told: list[str] = []
    pool = FakeWorkers([(0.01, 0.0)]).pool(machine_lock=lock, on_wait=told.append)
    results: list[TrialResult] = []
    runner = threading.Thread(target=run, args=(pool, "waits", results, 60.0))
    with lock.held():
        runner.start()
        until(lambda: told, "words of whom it waits for")
    runner.join()
    assert told == [f"waits for another measurement on this machine (pid {os.getpid()})"]
    assert results[0].error is None
    assert lock_holder(lock.folder / MEASURING) is None


def test_the_holder_of_a_lock_is_known(lock: MachineLock) -> None:
    with holding(lock) as holder:
        until(lambda: lock_holder(lock.folder / MEASURING) == holder.pid, "the holder")


def test_a_tuning_reports_once_whom_it_waits_for() -> None:
    told: list[str] = []
    launcher = reporting_waits(LocalLauncher(), told.append)
    assert isinstance(launcher, LocalLauncher)
    assert launcher.on_wait is not None
    for holder in ("a", "b", "a"):
        launcher.on_wait(holder)
    assert told == ["a", "b"]


class Silent:
    """A launcher of an extension, without reports."""

    name = "silent"

    def open(self, workload: Workload) -> Pool:
        raise NotImplementedError


def test_a_launcher_without_reports_stays_as_it_is() -> None:
    launcher = Silent()
    assert reporting_waits(launcher, print) is launcher


def test_cancelled_while_it_waits_it_costs_no_worker(lock: MachineLock) -> None:
    group = FakeWorkers([(0.01, 0.0)])
    pool = group.pool(machine_lock=lock)
    token = CancellationToken()
    token.cancel("by hand")
    with lock.held(), cancelled_by(token), pytest.raises(Cancelled):
        pool.run(TrialRequest("gives up", ddp(pool.workload.domain), 1, 3))
    assert group.workers == []


def test_a_burst_of_load_is_waited_out() -> None:
    readings = iter([CpuTicks(0, 0), CpuTicks(9, 10), CpuTicks(9.2, 20)])
    assert wait_until_quiet(0.12, 60.0, lambda: next(readings))
    assert next(readings, None) is None


def test_load_that_stays_ends_the_wait() -> None:
    busy = (CpuTicks(tick, tick) for tick in range(10_000))
    assert not wait_until_quiet(0.12, 0.6, lambda: next(busy))
