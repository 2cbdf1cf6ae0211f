"""Rows of ways that run in turn, with results that are given here."""

from dataclasses import replace
from typing import cast

import pytest

from autosync.search.designs.known_designs import all_reduce_5mb
from autosync.trials.contract import TrialError, TrialRequest, TrialResult
from autosync.trials.pool.process_pool import ProcessPool
from benchmarks.measure import Way, ddp_way, paired
from tests.domains import domain_of

FAST = TrialResult("", (0.1, 0.1), 0.1, 0.0, None, "given", 1.0, 1.0)


class DdpFailsInItsSecondRound:
    def run(self, request: TrialRequest) -> TrialResult:
        _, way, number = request.key.split("/")
        if way == "DDP" and number == "1":
            error = TrialError("crashed", "a rank died")
            return replace(FAST, step_seconds=None, iteration_seconds=(), error=error)
        return FAST


def test_a_reference_that_fails_leaves_the_others_their_rows() -> None:
    domain = domain_of()
    ways = [ddp_way(domain), Way("all-reduce", all_reduce_5mb(domain))]
    pool = cast("ProcessPool", DdpFailsInItsSecondRound())
    reference, other = paired(pool, domain, "case", ways, 3, 2)
    assert reference.error == "a rank died"
    assert other.error == ""
    assert other.rounds == 3
    assert other.step_seconds == pytest.approx(0.1)
    assert other.ratio == pytest.approx(1.0)  # of the round that has both
