"""Workers forked from one process: how they end is known; what they are forked from may be lost."""

import os
import queue
import signal
from collections.abc import Iterator

import pytest

from autosync.errors import NotSupported
from autosync.trials.machine import process_start
from autosync.trials.pool.fork_server import ForkServer
from autosync.trials.pool.worker_process import Answers, Placement, WorkerProcess


@pytest.fixture(scope="module")
def preload() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


@pytest.fixture
def answers() -> Answers:
    return queue.Queue()


def started(preload: ForkServer, answers: Answers) -> WorkerProcess:
    return Placement((), "lo", 0, preload=preload).start(0, (), answers)


def test_how_a_forked_worker_ends_is_known(preload: ForkServer, answers: Answers) -> None:
    worker = started(preload, answers)
    try:
        worker.send('{"op": "dance", "id": 7}')
        fields = answers.get(timeout=60).fields
        assert fields is not None
        assert (fields["reply"], fields["id"], fields["kind"]) == ("error", 7, "refused")
        assert os.getpgid(worker.pid) == worker.pid
        os.kill(worker.pid, signal.SIGKILL)
        assert answers.get(timeout=60).fields is None
        assert worker.ending().status == -signal.SIGKILL
    finally:
        worker.kill()


def test_where_the_preloaded_process_is_lost_the_next_worker_gets_another(
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
        assert process_start(first.pid) is not None, (
            "a worker lives without what it was forked from"
        )
    finally:
        first.kill()
    assert first.ending().status is None


def test_a_namespace_that_is_not_there_is_named(preload: ForkServer, answers: Answers) -> None:
    with pytest.raises(NotSupported, match="/proc/self/ns/nowhere"):
        Placement((), "lo", 0, ("/proc/self/ns/nowhere",), preload).start(0, (), answers)


def test_nothing_is_left_of_a_closed_one(answers: Answers) -> None:
    preload = ForkServer()
    worker = started(preload, answers)
    worker.kill()
    process = preload._process
    assert process is not None
    preload.close()
    preload.close()
    assert process_start(process.pid) is None
