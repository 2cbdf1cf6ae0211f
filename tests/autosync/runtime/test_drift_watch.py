"""A job says when its iterations become longer than its bundle promises, and only then."""

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from unittest.mock import patch

import autosync
from autosync.bundle import Evidence
from autosync.runtime import drift_watch
from autosync.runtime.drift_watch import (
    WINDOW,
    Drift,
    DriftWatch,
    expectation,
    how_to_search_again,
)
from tests.autosync.runtime.cases import Case, loss_of, make_model, make_optimizer
from tests.autosync.runtime.distributing import DDP, PLANS, bundle_of, fsdp2_bundle_of
from tests.autosync.runtime.ranks import Ranks

SHORT = 8
"""Iterations of a window on the ranks."""


def told(expected: float | None, iterations: Iterable[float]) -> list[Drift]:
    """What a watch says of iterations of so many seconds."""
    found: list[Drift] = []
    moments = [0.0]
    for seconds in iterations:
        moments.append(moments[-1] + seconds)
    watch = DriftWatch(expected, "measured", 1.2, found.append, clock=iter(moments).__next__)
    for _ in moments:
        watch(None, (), {})  # type: ignore[arg-type]  # the optimizer is not looked at
    return found


def many(seconds: float, windows: int) -> list[float]:
    return [seconds] * (windows * WINDOW)


def test_iterations_as_long_as_promised_say_nothing() -> None:
    slow_start = many(2.0, 1)
    pauses = [30.0 if i % 10 == 0 else 0.11 for i in range(20 * WINDOW)]
    assert told(0.1, [*slow_start, *pauses]) == []
    assert told(0.1, many(0.05, 9)) == []


def test_longer_ones_are_told_once_with_when_it_began() -> None:
    (drift,) = told(0.1, [*many(0.1, 4), *many(0.15, 20)])
    assert abs(drift.measured_seconds - 0.15) < 1e-9
    assert drift.expected_seconds == 0.1
    assert drift.since_iteration == 4 * WINDOW
    assert "150.0 ms in place of 100.0 ms (measured), since iteration 100 (" in str(drift)


def test_one_slow_window_is_no_drift() -> None:
    assert told(0.1, [*many(0.1, 4), *many(0.5, 1), *many(0.1, 4), *many(0.5, 1)]) == []


def test_a_second_slowdown_is_reported_again() -> None:
    growing = [*many(0.1, 4), *many(0.15, 6), *many(0.3, 6)]
    assert [round(d.expected_seconds, 6) for d in told(0.1, growing)] == [0.1, 0.15]
    back = [*many(0.1, 4), *many(0.2, 6), *many(0.1, 6), *many(0.2, 6)]
    assert [round(d.expected_seconds, 6) for d in told(0.1, back)] == [0.1, 0.1]


def test_without_evidence_the_first_iterations_count() -> None:
    (drift,) = told(None, [*many(9.0, 1), *many(0.1, 4), *many(0.15, 4)])
    assert abs(drift.expected_seconds - 0.1) < 1e-9


def test_the_expected_seconds_come_from_the_evidence() -> None:
    shipped = bundle_of(PLANS["server"], make_model("mlp"), 2)
    assert expectation(shipped, False) == (None, "the job's first iterations", 1.2)
    evidence = Evidence(predicted_seconds=0.2)
    assert expectation(replace(shipped, evidence=evidence), False) == (0.2, "predicted", 1.4)
    assert expectation(replace(shipped, evidence=evidence), True)[0] is None
    evidence = Evidence(0.2, 0.3, 0.4, "a job")
    measured = replace(shipped, evidence=evidence)
    assert expectation(measured, False) == (0.3, "measured on a job", 1.2)
    assert expectation(measured, True) == (0.4, "measured on a job", 1.2)


def test_a_sharded_model_is_tuned_again_in_the_next_run() -> None:
    """`autosync.tune` refuses it in this one."""
    sharded = fsdp2_bundle_of(make_model("mlp"), 2)
    told = how_to_search_again(sharded, False)
    assert 'space="fsdp2"' in told
    assert "in the next run" in told
    plan = bundle_of(PLANS["server"], make_model("mlp"), 2)
    for again in (how_to_search_again(sharded, True), how_to_search_again(plan, False)):
        assert "next run" not in again


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


@patch.object(drift_watch, "WINDOW", SHORT)
def slowed(rank: int, world: int, case: Case) -> tuple[list[Drift], list[str], bool]:
    """A job that rank 1 slows down from some iteration on, to five times as long; what it says, and
    whether anything is left on the optimizer when the plan is taken off."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model(case.model)
    optimizer = make_optimizer(case.optimizer, model)
    found: list[Drift] = []
    lines = Lines()
    logging.getLogger("autosync").addHandler(lines)
    network, optimizer = autosync.distribute(
        model, optimizer, bundle_of(case, model, world), on_drift=found.append
    )
    begun, pause = time.monotonic(), 0.0
    for iteration in range(7 * SHORT):
        if iteration == 4 * SHORT and rank == 1:
            pause = 4 * (time.monotonic() - begun) / iteration
        time.sleep(pause)
        optimizer.zero_grad()
        loss_of(network, iteration, rank).backward()
        optimizer.step()
    _, optimizer = autosync.detach(model)
    logging.getLogger("autosync").removeHandler(lines)
    return found, lines.found, bool(optimizer._optimizer_step_post_hooks)


def test_a_slowdown_is_told_by_every_rank_and_logged_by_one(pair: Ranks) -> None:
    for case in (PLANS["sharded"], DDP):
        first, second = pair.run(slowed, case)
        for found, _, left in (first, second):
            assert not left
            assert found[0].source == "the job's first iterations"
            late = [drift for drift in found if drift.since_iteration >= 3 * SHORT]
            assert any(drift.measured_seconds > 2 * drift.expected_seconds for drift in late)
        lines = [line for line in first[1] if "iterations take" in line]
        assert len(lines) == len(first[0])  # of other load, too
        assert not [line for line in second[1] if "iterations take" in line]
