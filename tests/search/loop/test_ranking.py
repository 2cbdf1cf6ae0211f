import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.errors import AutosyncError
from autosync.population import Population, decode
from autosync.search.loop.ranking import CHUNK, materialize, rank
from autosync.search.loop.shortlists import COARSE_SIZE, RANKED_SIZE, UNFAVOURED, coarse_places
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
    assert (ranked.simulator, ranked.proposals, ranked.seed) == ("rows", proposals, 5)
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
