"""A worker's lines: commands in, answers out."""

import queue

import pytest

from autosync.trials.commands import CommandFailed
from autosync.trials.launchers.local_launcher import LocalPlace
from autosync.trials.pool.worker_process import Answers

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
