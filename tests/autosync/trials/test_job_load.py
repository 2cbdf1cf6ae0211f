"""Whose CPU time it is: a job's own, its helpers' included, or others'."""

import subprocess
import sys

import pytest

from autosync.trials.live.outside_load import outside_load, usage

BURN = "import time\nwhile time.process_time() < 0.3: pass"


@pytest.mark.parametrize("reaped", [True, False])
def test_what_a_job_started_is_its_own(reaped: bool) -> None:
    before = usage()
    waits = "" if reaped else "\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", BURN + waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as helper:
        assert helper.stdout is not None
        helper.stdout.readline()  # a line, or the end
        if reaped:
            helper.wait()
        used = usage().since(before)
        helper.communicate(b"\n")
    assert used["job_seconds"] >= 0.25
    assert used["busy_seconds"] <= used["total_seconds"]


def test_load_is_what_the_ranks_of_a_machine_did_not_use() -> None:
    quiet = {"job_seconds": 2.0, "busy_seconds": 4.0, "total_seconds": 10.0}
    shared = {"job_seconds": 1.0, "busy_seconds": 4.0, "total_seconds": 10.0}
    answers = [{"host": "a", "used": quiet}, {"host": "a", "used": quiet}]
    assert outside_load(answers) == 0.0
    assert outside_load([*answers, {"host": "b", "used": shared}]) == pytest.approx(0.3)
