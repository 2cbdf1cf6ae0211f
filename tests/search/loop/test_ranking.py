"""Ranking proposals, and what the standard deviation of a prediction does to their places."""

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.errors import AutosyncError
from autosync.population import Population, decode
from autosync.search.loop.ranking import CHUNK, expected_improvement, materialize, promise_of, rank
from autosync.search.loop.sources import COARSE_SIZE, RANKED_SIZE, UNFAVOURED, coarse_places
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from tests.domains import domain_of

SPACE = Space(whole_below_bytes=1000)
DOMAIN = domain_of()


class RowCounter:
    """Predicts a second for every shard, and remembers how many it was shown at once."""

    name = "rows"

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def predict(self, domain: Domain, population: Population) -> NDArray[np.float64]:
        self.sizes.append(len(population))
        return np.diff(population.first).astype(np.float64)


class Refuser:
    """Finds every second strategy impossible."""

    name = "refuser"

    def predict(self, domain: Domain, population: Population) -> NDArray[np.float64]:
        return np.where(np.arange(len(population)) % 2, np.inf, 1.0)


class Broken:
    name = "broken"

    def predict(self, domain: Domain, population: Population) -> NDArray[np.float64]:
        raise AutosyncError("cannot predict")


@pytest.mark.parametrize("threads", [1, 3])
def test_the_best_are_kept_best_first(threads: int) -> None:
    proposals = 2 * CHUNK + 100
    seen: list[int] = []
    counter = RowCounter()
    ranked = rank(DOMAIN, SPACE, counter, proposals, 5, 30, threads, seen.append)
    rows = np.diff(sample(DOMAIN, SPACE, 0, proposals, 5).first)
    order = np.lexsort((np.arange(proposals), rows))[:30]
    assert ranked.index.tolist() == order.tolist()
    assert ranked.seconds.tolist() == rows[order].tolist()
    assert ranked.seed == 5
    assert seen == [CHUNK, 2 * CHUNK, proposals]
    assert sorted(counter.sizes) == [100, CHUNK, CHUNK]


def test_materialized_proposals_are_those_that_were_ranked() -> None:
    ranked = rank(DOMAIN, SPACE, RowCounter(), 300, 5, 10)
    kept = materialize(ranked, DOMAIN, SPACE)
    assert np.diff(kept.first).tolist() == ranked.seconds.tolist()
    for place, index in enumerate(ranked.index):
        alone = sample(DOMAIN, SPACE, int(index), 1, 5)
        assert decode(kept, place, DOMAIN) == decode(alone, 0, DOMAIN)


def test_impossible_strategies_are_not_kept() -> None:
    ranked = rank(DOMAIN, SPACE, Refuser(), 10, 0, 8)
    assert ranked.index.tolist() == [0, 2, 4, 6, 8]


def test_errors_of_the_simulator_surface() -> None:
    with pytest.raises(AutosyncError, match="cannot predict"):
        rank(DOMAIN, SPACE, Broken(), 5000, 0, 8)


def test_what_the_timeline_does_not_favour_is_judged_too() -> None:
    """All of a few; of many the first, and the rest ever more thinly, none of them twice."""
    np.testing.assert_array_equal(coarse_places(100, seed=0), np.arange(100))
    for ranked in (COARSE_SIZE + 1, RANKED_SIZE):
        places = coarse_places(ranked, seed=3)
        favoured = COARSE_SIZE - UNFAVOURED
        np.testing.assert_array_equal(places[:favoured], np.arange(favoured))
        assert len(places) == len(np.unique(places)) <= COARSE_SIZE
        assert places.max() < ranked
        np.testing.assert_array_equal(places, coarse_places(ranked, seed=3))
    rest = places[favoured:]
    assert len(rest) == UNFAVOURED
    assert rest.max() > 0.9 * RANKED_SIZE
    assert np.median(rest) < 0.5 * RANKED_SIZE
    assert (places[favoured:] != coarse_places(RANKED_SIZE, seed=4)[favoured:]).any()


def test_expected_improvement_is_the_mean_gain_of_draws() -> None:
    rng = np.random.default_rng(0)
    seconds, std = np.array([0.8, 1.0, 1.3]), np.array([0.02, 0.1, 0.4])
    drawn = seconds * np.exp(std * rng.normal(size=(400_000, 3)))
    expected = np.maximum(1.0 - drawn, 0.0).mean(axis=0)
    assert expected_improvement(seconds, std, 1.0) == pytest.approx(expected, rel=0.02)


def test_without_doubt_the_gain_is_the_difference() -> None:
    found = expected_improvement(np.array([0.75, 1.0, 2.0]), np.zeros(3), 1.0)
    assert found == pytest.approx([0.25, 0.0, 0.0], abs=1e-8)


def test_more_doubt_promises_more_unless_the_prediction_alone_counts() -> None:
    seconds, std = np.array([1.0, 1.0]), np.array([0.05, 0.2])
    assert promise_of(seconds, std, "prediction", 1.0).tolist() == [1.0, 1.0]
    for acquisition in ("lower_bound", "expected_improvement"):
        sure, unsure = promise_of(seconds, std, acquisition, 1.0)
        assert unsure < sure


def test_before_the_first_trial_the_fastest_predicted_is_to_be_beaten() -> None:
    seconds, std = np.array([1.0, 2.0]), np.full(2, 0.1)
    given = promise_of(seconds, std, "expected_improvement", 1.0)
    assert promise_of(seconds, std, "expected_improvement", None).tolist() == given.tolist()
