"""Worker processes: what programs on the way write, and how a killed one is named."""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from autosync.trials.commands import CommandFailed
from autosync.trials.pool import worker_process
from autosync.trials.pool.worker_process import Answers, WorkerProcess

WAIT_SECONDS = 200
Start = Callable[[str], WorkerProcess]

GARBLED = r"""
printf 'welcome \377\n42\nnull\n{}\n'
printf '{"answer": {"reply": "error", "kind": "crashed", "message": "-"}}\n'
printf 'bad \377\n' >&2
exit 3
"""


@pytest.fixture
def answers() -> Answers:
    return queue.Queue()


@pytest.fixture
def start(answers: Answers) -> Iterator[Start]:
    """Starts a shell with a script in place of a worker."""
    started = []

    def begin(script: str) -> WorkerProcess:
        started.append(WorkerProcess(0, ["sh", "-c", script], os.environ, answers))
        return started[-1]

    yield begin
    for worker in started:
        worker.kill()


def test_bytes_that_are_no_text_cost_nothing(start: Start, answers: Answers) -> None:
    worker = start(GARBLED)
    assert answers.get(timeout=WAIT_SECONDS).answer == CommandFailed("crashed", "-")
    assert answers.get(timeout=WAIT_SECONDS).answer is None
    assert worker.exit().status == 3
    worker.kill()  # its readers are through
    lines = worker.stderr_tail().splitlines()
    assert sorted(lines) == ["42", r"bad \xff", "null", r"welcome \xff", "{}"]


def test_a_damaged_answer_is_the_workers_failure(start: Start, answers: Answers) -> None:
    start("""printf '{"answer": {"reply": "pass", "starts": [1.0,\\n'""")
    damaged = answers.get(timeout=WAIT_SECONDS).answer
    assert isinstance(damaged, CommandFailed)
    assert damaged.kind == "crashed"
    assert "arrived damaged: worker answer: Invalid JSON" in damaged.message


@pytest.mark.parametrize(
    ("counts", "for_memory"),
    [
        ((0, 1, 2), True),  # one more since the last command
        ((0, 2, 2), False),  # between the start and the command: somebody else
        ((None, None, None), False),
        ((0, None, 1), False),
    ],
)
def test_only_a_kill_since_the_last_command_is_for_memory(
    start: Start, monkeypatch: pytest.MonkeyPatch, counts: tuple[int | None, ...], for_memory: bool
) -> None:
    """counts: of the kernel's kills, at the start, at the command and at the end."""
    told = iter(counts)
    monkeypatch.setattr(worker_process, "killed_for_memory", lambda: next(told))
    worker = start("exec sleep 60")
    worker.send("{}")
    worker.begin_kill()
    ended = worker.exit()
    assert (ended.status, ended.for_memory) == (-9, for_memory)


def test_a_process_that_left_the_group_and_holds_a_pipe_is_not_waited_for(start: Start) -> None:
    """As ssh's connection in the background does under ControlPersist, where ssh is older."""
    left = "setsid sh -c 'echo $$ >&2; exec sleep 600' </dev/null >/dev/null &"
    worker = start(f"{left} exec sleep 600")
    while not (told := worker.stderr_tail()).endswith("\n"):
        time.sleep(0.01)
    killing = threading.Thread(target=worker.kill, daemon=True)
    killing.start()
    killing.join(WAIT_SECONDS)
    ended = not killing.is_alive()
    os.kill(int(told), signal.SIGKILL)  # then the pipe ends, too
    assert ended


@pytest.mark.parametrize(("when_asked", "status"), [("exit 5", 5), ("", -9)])
def test_what_reaches_another_host_is_asked_to_end_and_killed_where_it_does_not(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, when_asked: str, status: int
) -> None:
    """srun ends what it has started there only where it is asked."""
    monkeypatch.setattr(worker_process, "ASKED_SECONDS", WAIT_SECONDS if when_asked else 0.0)
    script = f"trap '{when_asked}' TERM; echo ready >&2; while :; do sleep 0.1; done"
    worker = WorkerProcess(0, ["sh", "-c", script], os.environ, answers, where="node-7")
    while not worker.stderr_tail():
        time.sleep(0.01)
    worker.kill()
    assert worker.exit().status == status


def test_what_reaches_another_host_is_asked_once(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again within 5 s, mpirun leaves at once what it has started."""
    monkeypatch.setattr(worker_process, "ASKED_SECONDS", 0.0)
    first = """trap 'trap "exit 5" TERM; echo asked >&2' TERM"""
    script = f"{first}; echo ready >&2; while :; do sleep 0.1; done"
    worker = WorkerProcess(0, ["sh", "-c", script], os.environ, answers, where="node-7")
    for word in ("ready", "asked"):
        while word not in worker.stderr_tail():
            time.sleep(0.01)
        worker.begin_kill()
    status = worker.exit().status
    worker.kill()
    assert status is None
