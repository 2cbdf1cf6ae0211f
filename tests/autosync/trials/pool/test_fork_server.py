"""Workers forked from one process: how they end is known; what they are forked from may be lost."""

import os
import queue
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from autosync.errors import NotSupported
from autosync.trials.commands import CommandFailed
from autosync.trials.contract import Workload
from autosync.trials.launchers import local_launcher
from autosync.trials.launchers.local_launcher import LocalPlace
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.pool import fork_server
from autosync.trials.pool.fork_server import ForkServer
from autosync.trials.pool.worker_process import Answers, WorkerProcess
from tests.autosync.trials.strategies import small_domain
from tests.waiting import lives

WAIT_SECONDS = 200.0


@pytest.fixture(scope="module")
def preload() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


@pytest.fixture
def answers() -> Answers:
    return queue.Queue()


def started(preload: ForkServer, answers: Answers) -> WorkerProcess:
    return LocalPlace((), "lo", 0, preload=preload).start(0, (), answers)


def test_how_a_forked_worker_ends_is_known(preload: ForkServer, answers: Answers) -> None:
    worker = started(preload, answers)
    try:
        for line in ('{"command": {"op": "dance"}}', '{"command": {"op":'):
            worker.send(line)
            failed = answers.get(timeout=WAIT_SECONDS).answer
            assert isinstance(failed, CommandFailed)
            assert failed.kind == "refused"
            assert "'dance' found using 'op'" in failed.message or "Invalid JSON" in failed.message
        assert os.getpgid(worker.pid) == worker.pid
        os.kill(worker.pid, signal.SIGKILL)
        assert answers.get(timeout=WAIT_SECONDS).answer is None
        assert worker.exit().status == -signal.SIGKILL
    finally:
        worker.kill()


def test_a_lost_preloaded_process_is_replaced_for_the_next_worker(
    preload: ForkServer, answers: Answers
) -> None:
    first = started(preload, answers)
    try:
        assert preload._process is not None
        os.kill(preload._process.pid, signal.SIGKILL)
        preload._process.wait()
        with pytest.raises(NotSupported, match="has ended"):
            started(preload, answers)
        second = started(preload, answers)
        second.kill()
        assert lives(first.pid), "a worker lives without what it was forked from"
    finally:
        first.kill()
    assert first.exit().status is None


def test_an_interrupted_start_leaves_no_answer_to_the_next(
    preload: ForkServer, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(preload, answers).kill()

    def interrupted(channel: socket.socket, seconds: float) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fork_server, "_received", interrupted)
        with pytest.raises(KeyboardInterrupt):
            started(preload, answers)
    worker = started(preload, answers)
    try:
        assert worker.process.stdin is not None
        ours = Path(f"/proc/self/fd/{worker.process.stdin.fileno()}").readlink()
        assert Path(f"/proc/{worker.pid}/fd/0").readlink() == ours
    finally:
        worker.kill()


def test_a_namespace_that_is_not_there_is_named(preload: ForkServer, answers: Answers) -> None:
    with pytest.raises(NotSupported, match="/proc/self/ns/nowhere"):
        LocalPlace((), "lo", 0, ("/proc/self/ns/nowhere",), preload).start(0, (), answers)


def test_nothing_is_left_of_a_closed_one(preload: ForkServer, answers: Answers) -> None:
    """The last one that needs it."""
    worker = started(preload, answers)
    worker.kill()
    process = preload._process
    assert process is not None
    preload.close()
    preload.close()
    assert not lives(process.pid)


def test_one_that_dies_while_it_loads_is_refused_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: Answers
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no torch here' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(fork_server.sys, "executable", str(broken))  # type: ignore[attr-defined]
    preload = ForkServer()
    for _ in range(2):
        with pytest.raises(NotSupported, match="no torch here"):
            started(preload, answers)
    preload.close()


@pytest.mark.testbed
def test_a_testbed_goes_down_whatever_its_preloaded_process_does(
    testbed_possible: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(ForkServer):
        def close(self) -> None:
            raise OSError("on purpose")

    monkeypatch.setattr(local_launcher, "ForkServer", Failing)
    pool = TestbedLauncher(check=False).open(Workload(small_domain()))
    built = Path(pool.places[0].namespaces[-1])  # type: ignore[attr-defined]
    assert built.exists()
    with pytest.raises(OSError, match="on purpose"):
        pool.close()
    assert not built.exists()
