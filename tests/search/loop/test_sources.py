"""A round's trials: each source has its share, and earns it."""

from collections import Counter
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from autosync.errors import InvalidInput
from autosync.population import decode, encode
from autosync.search.loop import proposing
from autosync.search.loop.design_candidates import known_designs
from autosync.search.loop.ranking import Shortlist, ranking_context
from autosync.search.loop.settings import Settings
from autosync.search.loop.sources import INSURED_SHARE, earned_share, passed_on, quota, round_shares
from autosync.search.loop.tuning_store import Candidate
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.fitting.iteration_costs import MODEL_NOISE
from tests.search.loop.test_design_candidates import SETTINGS, TIMELINE, Doubtful, tuned
from tests.search.loop.test_tuning_loop import DOMAIN

STRATEGIES = [each.strategy for each in known_designs(DOMAIN, Space(), TIMELINE)[:6]]


def listed(seconds: list[float], std: float) -> Shortlist:
    count = len(seconds)
    predicted, doubt = np.array(seconds), np.full(count, std)
    population = encode(STRATEGIES[:count], DOMAIN)
    return Shortlist(population, np.full(count, -1), predicted, doubt, predicted)


def test_shares_of_a_round() -> None:
    assert round_shares(Settings(), 8, 3) == [("sampled", 4), ("refined", 3), ("neighbour", 1)]
    assert round_shares(Settings(), 8, 0) == [("sampled", 8)]
    for room in range(9):
        assert sum(count for _, count in round_shares(Settings(), room, 1)) == room


def test_settings_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="refined_share, neighbour_share"):
        Settings(refined_share=0.6, neighbour_share=0.6)
    with pytest.raises(InvalidInput, match="design_share is 2"):
        Settings(design_share=2)
    with pytest.raises(InvalidInput, match="first_designs is 0"):
        Settings(first_designs=0)
    with pytest.raises(InvalidInput, match="budget is -3"):
        Settings(budget=-3)
    with pytest.raises(InvalidInput, match="seed is -1"):
        Settings(seed=-1)
    with pytest.raises(InvalidInput, match="seed is 9007199254740992; it must be below"):
        Settings(seed=2**53)
    with pytest.raises(InvalidInput, match="warmup is -1"):
        Settings(warmup=-1)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="timeout_seconds is"):
            Settings(timeout_seconds=seconds)


def test_shares_are_of_all_rounds_together() -> None:
    total = Counter[str]()
    for before in range(0, 32, 4):
        total.update(dict(round_shares(Settings(), 4, 1, before)))
    assert total == {"sampled": 16, "refined": 12, "neighbour": 4}
    assert [quota(0.125, before, 4) for before in range(0, 16, 4)] == [0, 1, 0, 1]
    for share in (0.0, 0.1, 0.125, 0.375, 1.0):
        assert sum(quota(share, before, 3) for before in range(0, 60, 3)) == int(60 * share)


def test_a_trial_is_earned_by_what_could_be_the_fastest() -> None:
    learned = ranking_context(DOMAIN, Doubtful(0.1), "lower_bound", 1.0, STRATEGIES[:1])
    assert earned_share(listed([0.9, 1.1, 1.1, 1.2], 0.1), learned, 4, 0) == 3
    assert earned_share(listed([0.9, 1.1, 1.1, 1.2], 0.01), learned, 4, 0) == 1
    assert earned_share(listed([0.9, 0.9, 0.9], 0.01), learned, 2, 0) == 2
    assert earned_share(listed([1.2, 1.3], 0.01), learned, 3, 0) == 0
    assert earned_share(listed([1.2, 1.3], 0.01), learned, 3, 1) == 1, "in any case"
    unmeasured = ranking_context(DOMAIN, Doubtful(0.1), "lower_bound", None, [])
    assert earned_share(listed([1.2, 1.3], 0.01), unmeasured, 2, 0) == 2
    untaught = ranking_context(DOMAIN, TIMELINE, "lower_bound", 1.0, STRATEGIES[:1])
    doubtful = [1.0 + 0.5 * MODEL_NOISE, 1.0 + 2.0 * MODEL_NOISE]
    assert earned_share(listed(doubtful, 0.0), untaught, 2, 0) == 1, "no doubt is stated"


def test_what_a_source_has_not_earned_goes_to_the_others() -> None:
    shares = round_shares(Settings(), 8, 1)[1:]
    assert passed_on(shares, 0) == shares
    assert passed_on(shares, 4) == [("refined", 6), ("neighbour", 2)]
    assert passed_on(shares, 3) == [("refined", 6), ("neighbour", 1)]
    assert passed_on([], 3) == []
    without = round_shares(Settings(), 1, 1)[1:]
    assert without == [("refined", 0), ("neighbour", 0)]
    assert passed_on(without, 1) == [("refined", 1), ("neighbour", 0)]
    for spare in range(9):
        assert sum(count for _, count in passed_on(shares, spare)) == 4 + spare


def test_draws_that_cannot_be_the_fastest_leave_their_trials_to_refinements() -> None:
    """A strategy is measured as predicted here, and half of a round's trials went to draws."""
    unsure, sure = (tuned(SETTINGS, std) for std in (1.0, 0.0))
    for rounds in (unsure, sure):
        assert sum(map(len, rounds.values())) == SETTINGS.budget, "nothing is left unspent"
    drawn = [
        sum(p.candidate.origin == "sampled" for n in rounds if n for p in rounds[n])
        for rounds in (unsure, sure)
    ]
    later = SETTINGS.budget - len(unsure[0])
    assert drawn[1] == INSURED_SHARE * later < drawn[0]
    blind = tuned(replace(SETTINGS, refined_share=0.0, neighbour_share=0.0), 0.0)
    alone = [p.candidate.origin for n in blind if n for p in blind[n]]
    assert alone.count("sampled") > 0.5 * later, "with nobody to leave them to"


def test_neighbours_have_their_share_where_each_round_tunes_a_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the other three trials of four rounds one is theirs."""
    numbers = count()

    def buffer(*given: object) -> list[Candidate]:
        drawn = sample(DOMAIN, Space(), next(numbers), 1, 99)
        return [Candidate(decode(drawn, 0, DOMAIN), 1.0, "doubtful", "dear_tuned")]

    monkeypatch.setattr(proposing, "tuned_fusion", buffer)
    rounds = tuned(replace(SETTINGS, design_share=0.0, repeats=1), 1.0)
    later = Counter(p.candidate.origin for n in rounds if n for p in rounds[n])
    assert (later["dear_tuned"], later["neighbour"]) == (4, 1)
