"""Which of a live trial's errors is told: its cause, whatever the ranks' clocks say."""

from typing import Any

import pytest

from autosync.errors import InvalidInput
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.trials.commands import MeasuredIterations, PassDone
from autosync.trials.contract import TrialFailed, TrialRequest
from autosync.trials.live.job_pool import (
    PARTED,
    JobPool,
    LiveFailure,
    counted_nics,
    failure_kind,
    first_cause,
)
from tests.autosync.trials.strategies import ddp, small_domain


def test_a_wait_that_ended_goes_before_the_peers_it_cost() -> None:
    """A rank that began the trial later counts fewer seconds until its connection closed."""
    parted = LiveFailure(1.96, PARTED, "connection closed")
    found = first_cause({0: LiveFailure(2.01, "timeout", "waited"), 2: parted})
    assert (found.kind, found.message) == ("timeout", "rank 0: waited")


def test_what_a_rank_did_goes_before_all_else() -> None:
    crashed = LiveFailure(3.0, "crashed", "ValueError: no")
    found = first_cause({0: LiveFailure(0.1, "timeout", "waited"), 1: crashed})
    assert found.message == "rank 1: ValueError: no"


def test_a_lost_peer_alone_is_a_crash() -> None:
    found = first_cause(
        {1: LiveFailure(0.2, PARTED, "later"), 2: LiveFailure(0.1, PARTED, "closed")}
    )
    assert (found.kind, found.message) == ("crashed", "rank 2: closed")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("[pair.cc:525] Connection closed by peer [10.0.0.2]:5000"), PARTED),
        (RuntimeError("[unbound_buffer.cc:84] Timed out waiting 3000ms for recv"), "timeout"),
        (SynchronizationFailed("the trial was abandoned."), PARTED),
        (SynchronizationFailed("message 3 failed: Timed out waiting 3000ms"), "timeout"),
        (ConnectionRefusedError(111, "Connection refused"), "crashed"),
        (TimeoutError("the data source timed out"), "crashed"),
        (InvalidInput("no connection between these variables."), "refused"),
    ],
)
def test_the_steps_own_connections_are_no_peers(error: Exception, kind: str) -> None:
    assert failure_kind(error) == kind


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
