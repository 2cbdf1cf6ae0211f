"""A warm worker: one rank that takes plan after plan, as JSON lines over stdin and stdout.

`commands` says which commands there are and what answers them. Whatever goes wrong, a line that is
no command included, is answered by `CommandFailed`. At the end of stdin the process ends at once,
even in the middle of a collective: no worker outlives the process that started it.
"""

import argparse
import os
import queue
import sys
import threading
import traceback
from typing import TextIO

from autosync.errors import AutosyncError
from autosync.trials.commands import Answer, answer_line, read_command

NICENESS = -10


class JsonLines:
    """JSON lines in UTF-8, whatever the locale: commands in, answers out; stray prints of libraries
    go to stderr."""

    def __init__(self) -> None:
        self._answers: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self.commands: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with open(0, encoding="utf-8", errors="backslashreplace", closefd=False) as lines:
            for line in lines:
                self.commands.put(line)
        os._exit(0)  # the launcher is gone

    def answer(self, answer: Answer) -> None:
        self._answers.write(answer_line(answer) + "\n")
        self._answers.flush()


def lower_priority() -> None:
    """Batch policy: gloo's polling threads otherwise starve the one that holds their lock
    (a 1 KB all-reduce takes 6 to 20 ms, against 1.1 ms)."""
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    except PermissionError:
        print("negative nice values are not permitted; batch policy alone", file=sys.stderr)


def serve(wire: JsonLines, workloads: list[str]) -> None:
    """Answer commands until stdin ends."""
    from autosync.trials.failures import failure_of  # these import torch: after the policy is set
    from autosync.trials.worker.rank import Rank

    rank = Rank(workloads)
    while True:
        line = wire.commands.get()
        try:
            wire.answer(rank.answer(read_command(line)))
        except Exception as error:  # a process boundary: every failure becomes an answer
            traceback.print_exc()
            wire.answer(failure_of(error))
            try:
                rank.detach_plan()
            except AutosyncError:  # the plan is off all the same
                traceback.print_exc()


def main() -> None:
    parser = argparse.ArgumentParser(prog="autosync.trials.worker.worker_main")
    parser.add_argument("--workloads", default="", help="name=package.module:function, ...")
    given = parser.parse_args()
    work([entry for entry in given.workloads.split(",") if entry])


def work(workloads: list[str]) -> None:
    """Be a worker until stdin ends; with it the process does."""
    wire = JsonLines()
    lower_priority()
    serve(wire, workloads)


if __name__ == "__main__":
    main()
