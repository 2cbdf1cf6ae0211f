"""Which of a live trial's errors is told: its cause, whatever the ranks' clocks say."""

from typing import Any

import pytest

from autosync.trials.commands import MeasuredIterations, PassDone
from autosync.trials.contract import TrialFailed, TrialRequest
from autosync.trials.live.job_pool import (
    JobPool,
    counted_nics,
)
from tests.autosync.trials.strategies import ddp, small_domain


def test_no_pass_begins_when_the_tunings_time_is_up() -> None:
    """No rank is asked: all can go on."""
    job: Any = None
    pool = JobPool(job, "job (test)", until=10.0, clock=lambda: 10.0)
    with pytest.raises(TrialFailed, match="the time of the tuning is up") as raised:
        pool.run_pass(TrialRequest("late", ddp(small_domain())), after_load=False)
    assert raised.value.ranks_usable
    assert raised.value.error.kind == "timeout"


def test_nics_are_told_where_every_node_has_its_own_kernel() -> None:
    def answer(nic: str, host: str) -> PassDone:
        return PassDone(MeasuredIterations((), 0.0, 0.0, 0.0, 0.0, 0), host, None, 0.0, nic=nic)

    first, other = answer("a", "x"), answer("b", "y")
    assert counted_nics([first, first, other]) == ["a", "a", "b"]
    assert counted_nics([first, answer("b", "x")]) == []
    assert counted_nics([first, first]) == []
    assert counted_nics([answer("", "x"), answer("", "y")]) == []
