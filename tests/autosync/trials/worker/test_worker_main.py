"""A worker's lines: commands in, answers out."""

import queue
from typing import ClassVar

import pytest

from autosync.errors import NotSupported
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.trials.commands import (
    Answer,
    Command,
    CommandFailed,
    TimeMessages,
    TimeStretches,
    command_line,
)
from autosync.trials.launchers.local_launcher import LocalPlace
from autosync.trials.pool.worker_process import Answers
from autosync.trials.worker import rank, worker_main

WAIT_SECONDS = 200.0


def test_lines_are_utf_8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    for name, value in (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")):
        monkeypatch.setenv(name, value)
    answers: Answers = queue.Queue()
    worker = LocalPlace((), "lo", 0).start(0, (), answers)
    try:
        worker.send('{"command": {"op": "最速"}}')
        failed = answers.get(timeout=WAIT_SECONDS).answer
    finally:
        worker.kill()
    assert isinstance(failed, CommandFailed)
    assert "'最速' found using 'op'" in failed.message


class Ended(BaseException):
    """Ends the loop of a worker."""


def test_a_plan_that_does_not_come_off_after_a_refusal_leaves_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where all ranks refuse, the pool keeps them for the next trial."""

    class Refusing:
        def __init__(self, workloads: list[str]) -> None:
            pass

        def answer(self, command: Command) -> Answer:
            if isinstance(command, TimeStretches):
                raise Ended
            raise NotSupported("on purpose.")

        def detach_plan(self) -> None:
            raise SynchronizationFailed("a rank has left before.")

    class Wire:
        commands: ClassVar[queue.SimpleQueue[str]] = queue.SimpleQueue()
        answers: ClassVar[list[Answer]] = []

        def answer(self, answer: Answer) -> None:
            self.answers.append(answer)

    monkeypatch.setattr(rank, "Rank", Refusing)
    wire = Wire()
    for command in (TimeMessages("all_reduce", 4, (0, 1), 1), TimeStretches(1)):
        wire.commands.put(command_line(command))
    with pytest.raises(Ended):
        worker_main.serve(wire, [])  # type: ignore[arg-type]
    assert [type(each) for each in wire.answers] == [CommandFailed]
