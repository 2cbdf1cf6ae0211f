"""How a service stops its workers."""

import subprocess
import sys
import time
from pathlib import Path

from autosync.api.cli.worker_processes import SupervisedWorker, WorkerProcesses

WORKER = """
import signal, sys, time
from pathlib import Path
asked, end = Path(sys.argv[1]), Path(sys.argv[2])
def ask(number, frame):
    with asked.open("a") as file:
        file.write("asked ")
signal.signal(signal.SIGTERM, ask)
print("ready", flush=True)
while not end.exists():
    time.sleep(0.01)
"""


def test_who_gives_back_what_runs_is_not_asked_again(tmp_path: Path) -> None:
    """A second signal ends a worker at once: what ran would wait for the end of its lease."""
    asked, end = tmp_path / "asked", tmp_path / "end"
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(asked), str(end)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process:
        process.stdout.readline()
        workers = WorkerProcesses("sqlite://", 0)
        workers.workers.append(SupervisedWorker("sqlite://", process, time.monotonic()))
        workers.ask_to_stop()
        deadline = time.monotonic() + 100
        while not asked.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        workers.ask_to_stop()
        end.touch()
        workers.stop()
    assert process.returncode == 0
    assert asked.read_text() == "asked "
