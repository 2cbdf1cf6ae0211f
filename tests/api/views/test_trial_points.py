"""What the dashboard's charts are drawn of."""

import numpy as np
import pytest

from autosync.api.db import Database
from autosync.api.views import reports
from autosync.api.views.dashboard.trial_points import (
    TrialPoint,
    best_so_far,
    ddp_seconds,
    pairs_by_round,
    trial_points,
)
from autosync.api.views.rankings import confirmed_speedups
from tests.api.sample import finished, small_request


def points(*trials: tuple[str, str, int, float]) -> list[TrialPoint]:
    """Of strategy, phase, round and seconds; what is predicted grows with the place."""
    return [
        TrialPoint(place, phase, number, strategy, seconds, float(place), strategy == "ddp")
        for place, (strategy, phase, number, seconds) in enumerate(trials)
    ]


def test_the_best_so_far_goes_by_medians_and_can_rise() -> None:
    trials = points(
        ("ddp", "search", 0, 10.0),
        ("lucky", "search", 0, 5.0),
        ("steady", "search", 0, 7.0),
        ("lucky", "confirm", 0, 9.0),  # the confirmation alone counts from here on
        ("steady", "confirm", 0, 6.5),
        ("ddp", "confirm", 0, 10.0),
    )
    assert best_so_far(trials) == [10.0, 5.0, 5.0, 7.0, 6.5, 6.5]
    assert ddp_seconds(trials) == 10.0
    assert ddp_seconds([]) is None


def test_pairs_are_counted_within_a_round() -> None:
    trials = points(
        ("a", "search", 0, 1.0),
        ("b", "search", 0, 2.0),
        ("c", "search", 0, 1.5),
        ("d", "search", 1, 1.0),  # one alone has no pair
        ("e", "search", 2, 2.0),
        ("f", "search", 2, 1.0),
        ("f", "confirm", 0, 1.0),
    )
    found = pairs_by_round(trials)
    assert [(each.round, each.pairs) for each in found] == [(0, 3), (2, 1)]
    assert [each.right for each in found] == pytest.approx([2 / 3, 0.0])


def test_large_rounds_are_thinned_out() -> None:
    many = points(*((f"s{i}", "search", 0, 1.0 + i) for i in range(3000)))
    (found,) = pairs_by_round(many)
    assert (found.right, found.strategies, found.pairs) == (1.0, 3000, 500 * 499 // 2)


def test_speed_ups_are_over_the_baseline_whichever_it_is() -> None:
    confirmation = [
        ("known", 0, 6.0),
        ("found", 0, 4.0),
        ("found", 1, 3.0),
        ("known", 1, 6.0),
        ("late", 2, 1.0),  # no repeat in common
    ]
    ((name, only),) = confirmed_speedups(confirmation, "known").items()
    assert (name, only.repeats) == ("found", (1.5, 2.0))
    assert confirmed_speedups(confirmation, "ddp") == {}


def test_points_and_speedups_are_those_of_the_reports(database: Database) -> None:
    tuning_id = finished(database, small_request(8))
    with database.reading() as session:
        found = trial_points(session, tuning_id)
        result = reports.tuning(session, tuning_id).result
        trials = reports.trials(session, tuning_id).items
    assert result is not None
    assert [p.position for p in found] == [t.position for t in trials if t.step_seconds]
    assert {p.strategy_id for p in found if p.is_ddp} == {
        t.strategy_id for t in trials if t.origin == "ddp"
    }
    (base,) = {p.strategy_id for p in found if p.is_ddp}
    repeats = ((p.strategy_id, p.round, p.step_seconds) for p in found if p.phase == "confirm")
    answer = confirmed_speedups(repeats, base)[result.strategy_id]
    assert answer.median == result.speedup
    assert (answer.low, answer.high) == (result.speedup_low, result.speedup_high)
    assert np.median(answer.repeats) == pytest.approx(answer.median)
