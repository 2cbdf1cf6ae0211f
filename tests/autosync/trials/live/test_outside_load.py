"""Whose CPU time it is: a job's own, its helpers' included, or others'."""

import subprocess
import sys

import pytest

from autosync.trials.live.outside_load import CpuUse, cpu_use, largest_outside_share

BURN = "import time\nwhile time.process_time() < 0.5: pass"
"""Half a second of CPU time, however long that takes beside others."""


@pytest.mark.parametrize("reaped", [True, False])
def test_what_a_job_started_is_its_own(reaped: bool) -> None:
    before = cpu_use()
    waits = "" if reaped else "\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", BURN + waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as helper:
        assert helper.stdout is not None
        helper.stdout.readline()  # a line, or the end
        if reaped:
            helper.wait()
        used = cpu_use().since(before)
        helper.communicate(b"\n")
    assert used.job_seconds >= 0.25


def test_load_is_what_the_ranks_of_a_machine_did_not_use() -> None:
    quiet = CpuUse(job_seconds=2.0, busy_seconds=4.0, total_seconds=10.0)
    shared = CpuUse(job_seconds=1.0, busy_seconds=4.0, total_seconds=10.0)
    used = [("a", quiet), ("a", quiet)]
    assert largest_outside_share(used) == 0.0
    assert largest_outside_share([*used, ("b", shared)]) == pytest.approx(0.3)
