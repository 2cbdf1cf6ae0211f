"""Seconds left, by a clock that the test sets."""

import pytest

from autosync.api.db import Database
from autosync.api.views import reports
from autosync.api.views.time_left import TimeLeft
from tests.api.sample import claimed, run_search, small_request


def searched(left: TimeLeft, trials: int, budget: int, each: float, began: float = 0.0) -> float:
    """A ranking that ends at `began`, then trials of `each` seconds; when the last one ended."""
    left.see("ranking", 100, 100, began)
    for done in range(1, trials + 1):
        left.see("search", done, budget, began + done * each)
    return began + trials * each


def test_before_a_trial_was_timed_nothing_is_claimed() -> None:
    left = TimeLeft(budget=10, repeats=3)
    assert left.words(0.0) == ""
    left.see("opening", 0, 0, 1.0)
    left.see("search", 1, 10, 30.0)  # the workers started meanwhile
    assert left.seconds(31.0) is None
    left.see("search", 2, 10, 34.0)
    assert left.seconds(34.0) == pytest.approx(4.0 * (8 + 4 + 2 * 2))


def test_trials_of_the_budget_and_of_the_confirmation() -> None:
    left = TimeLeft(budget=10, repeats=3)
    now = searched(left, trials=4, budget=10, each=2.0)
    assert left.seconds(now) == pytest.approx(2.0 * (6 + 4 + 2 * 2))
    assert left.words(now) == "about 28 s left"


def test_it_counts_down_through_a_trial_and_never_past_it() -> None:
    left = TimeLeft(budget=5, repeats=1)
    now = searched(left, trials=4, budget=5, each=10.0)
    assert left.seconds(now + 4.0) == pytest.approx(46.0)
    assert left.seconds(now + 10.0) == pytest.approx(40.0)
    assert left.seconds(now + 500.0) == pytest.approx(40.0)


def test_confirming_trials_have_a_length_of_their_own() -> None:
    left = TimeLeft(budget=4, repeats=2)
    now = searched(left, trials=4, budget=4, each=10.0)
    left.see("confirm", 1, 6, now + 3.0)  # two finalists and DDP, not three
    assert left.seconds(now + 3.0) == pytest.approx(5 * 3.0)
    left.see("confirm", 6, 6, now + 18.0)
    assert left.seconds(now + 18.0) == 0.0


def test_a_small_budget_has_few_finalists() -> None:
    left = TimeLeft(budget=2, repeats=10)
    now = searched(left, trials=2, budget=2, each=1.0)
    assert left.seconds(now) == pytest.approx(20.0)


def test_waiting_is_no_part_of_a_trial() -> None:
    left = TimeLeft(budget=4, repeats=1)
    now = searched(left, trials=2, budget=4, each=5.0)
    left.see("waiting", 0, 0, now)
    assert left.seconds(now + 600.0) == pytest.approx(5.0 * (2 + 4))
    assert left.words(now) == "about 30 s left after that"
    left.see("search", 3, 4, now + 605.0)
    assert left.seconds(now + 605.0) == pytest.approx(5.0 * (1 + 4))


def test_ranking_by_the_proposals_done() -> None:
    left = TimeLeft(budget=8, repeats=1)
    left.see("ranking", 100, 1000, 10.0)
    assert left.ranking_seconds(10.0) is None
    left.see("ranking", 300, 1000, 14.0)
    assert left.ranking_seconds(14.0) == pytest.approx(700 * 4.0 / 200)
    assert left.words(15.0) == "ranked in about 13 s"
    left.see("ranking", 1000, 1000, 28.0)
    assert left.ranking_seconds(28.0) is None


def test_a_later_ranking_is_added_to_the_trials() -> None:
    left = TimeLeft(budget=8, repeats=1)
    now = searched(left, trials=4, budget=8, each=2.0)
    left.see("ranking", 100, 300, now)
    left.see("ranking", 200, 300, now + 6.0)
    assert left.seconds(now + 6.0) == pytest.approx(2.0 * (4 + 4) + 6.0)


def test_of_a_tuning_in_the_database(sqlite: Database) -> None:
    request = small_request()
    held, store = claimed(sqlite, request)
    with sqlite.reading() as session:
        assert reports.time_left_words(session, reports.tuning(session, held.job_id)) == ""
    run_search(store, request)
    with sqlite.reading() as session:
        words = reports.time_left_words(session, reports.tuning(session, held.job_id))
    assert words.startswith("about ")
