"""A training's process stands still while anything is measured, and ends with whoever wants it."""

import os
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from autosync.api.engine.training_process import Say, run_beside_trials
from autosync.cancellation import CancellationToken, Cancelled, cancelled_by
from autosync.errors import InvalidInput
from autosync.trials.pool.machine_lock import MachineLock
from tests.waiting import until

SCRIPT = """
import sys
from functools import partial
from pathlib import Path
from autosync.api.engine.training_process import run_beside_trials
from autosync.trials.pool.machine_lock import MachineLock
from tests.api.engine.test_training_process import answered
folder = Path(sys.argv[1])
run_beside_trials(partial(answered, folder / "go"), lambda pid: print(pid, flush=True),
                  MachineLock(folder))
"""


def answered(go: Path, say: Say) -> int:
    """42, once the file is there; says its process first."""
    say(str(os.getpid()))
    while not go.exists():
        time.sleep(0.01)
    return 42


def failing(how: str, say: Say) -> None:
    if how == "refused":
        raise InvalidInput("no such thing.", thing="training", value=7, remedy="Ask for another.")
    if how == "broken":
        raise ValueError("broken on purpose")
    os._exit(3)


def state(pid: int) -> str:
    """As the kernel has it: T stands still; empty where it has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


class Run:
    """An answer that is worked on; `pid` is that of its process."""

    def __init__(self, folder: Path) -> None:
        self.lock = MachineLock(folder)
        self.go = folder / "go"
        self.token = CancellationToken()
        self._said: list[str] = []
        pool = ThreadPoolExecutor(1)
        self.answer: Future[int] = pool.submit(self._run)
        pool.shutdown(wait=False)
        until(lambda: bool(self._said), "the process")
        self.pid = int(self._said[0])

    def _run(self) -> int:
        with cancelled_by(self.token):
            return run_beside_trials(partial(answered, self.go), self._said.append, self.lock)


def test_it_stands_still_while_anything_is_measured(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(2):
        with run.lock.held():
            until(lambda: state(run.pid) == "T", "a standstill beside a measurement")
        until(lambda: state(run.pid) != "T", "going on behind a measurement")
    with run.lock.held():
        until(lambda: state(run.pid) == "T", "a standstill beside a measurement")
        run.go.touch()
        assert not run.answer.done()
    assert run.answer.result(200) == 42
    assert state(run.pid) == ""


def test_cancelled_it_is_gone_also_while_it_stands_still(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.lock.held():
        until(lambda: state(run.pid) == "T", "a standstill beside a measurement")
        run.token.cancel("interrupted")
        with pytest.raises(Cancelled):
            run.answer.result(200)
        assert state(run.pid) == ""


def test_it_dies_with_a_killed_worker(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    with worker, worker.stdout:
        pid = int(worker.stdout.readline())
        with MachineLock(tmp_path).held():
            until(lambda: state(pid) == "T", "a standstill beside a measurement")
            worker.kill()
            until(lambda: state(pid) in ("", "Z"), "its end with its worker")


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("refused", InvalidInput, "no such thing"),
        ("broken", RuntimeError, "broken on purpose"),
        ("killed", RuntimeError, "ended with status 3"),
    ],
)
def test_what_goes_wrong_in_it_is_told(
    tmp_path: Path, how: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        run_beside_trials(partial(failing, how), print, MachineLock(tmp_path))


LARGE_BYTES = 1 << 22
"""More than a pipe takes at once."""


def large(folder: Path, say: Say) -> bytes:
    """Says its process in a file, just before it answers."""
    (folder / "answers").write_text(f"{os.getpid()}\n")
    return bytes(LARGE_BYTES)


class HeldInAnAnswer(MachineLock):
    """Held for one look, at which the process is in the middle of its answer."""

    def is_held(self) -> bool:
        answers, looked = self.folder / "answers", self.folder / "looked"
        if looked.exists():
            return False
        looked.touch()
        until(lambda: answers.exists() and answers.read_text().endswith("\n"), "an answer")
        until(lambda: state(int(answers.read_text())) == "S", "a full pipe")
        return True


def test_it_does_not_stand_still_in_the_middle_of_its_answer(tmp_path: Path) -> None:
    """Whoever reads it would wait for the rest without end."""
    answer = run_beside_trials(partial(large, tmp_path), print, HeldInAnAnswer(tmp_path))
    assert len(answer) == LARGE_BYTES
