"""Which of a live trial's errors is told: its cause, whatever the ranks' clocks say."""

from autosync.trials.job_pool import _first_cause
from autosync.trials.live_job import PARTED


def test_a_wait_that_ended_goes_before_the_peers_it_cost() -> None:
    """A rank that began the trial later counts fewer seconds until its connection closed."""
    errors = {0: (2.01, "timeout", "waited"), 2: (1.96, PARTED, "connection closed")}
    found = _first_cause(errors)
    assert (found.kind, found.message) == ("timeout", "rank 0: waited")


def test_what_a_rank_did_goes_before_all_else() -> None:
    errors = {0: (0.1, "timeout", "waited"), 1: (3.0, "crashed", "ValueError: no")}
    assert _first_cause(errors).message == "rank 1: ValueError: no"


def test_a_lost_peer_alone_is_a_crash() -> None:
    found = _first_cause({1: (0.2, PARTED, "closed later"), 2: (0.1, PARTED, "closed")})
    assert (found.kind, found.message) == ("crashed", "rank 2: closed")
