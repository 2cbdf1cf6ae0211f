"""Searches by small edits improve what they begin with, whatever the threads."""

import numpy as np
from hypothesis import given

from autosync.codes import Order
from autosync.domain import Domain
from autosync.population import Population, encode
from autosync.search.designs.design_table import hand_designed
from autosync.search.edits.local_search import fastest, neighbours_of, searched_from
from autosync.search.edits.small_edits import make_edited, parents_of
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from tests.search.drawn_domains import check_groups, domains, seeds, spaces, unconstrained
from tests.search.edits.strategies import DOMAIN, SMALL, designs_and_draws, parents_among
from tests.search.sampler.test_sampling import assert_same


def predict(population: Population) -> np.ndarray:
    return TimelineSimulator().predict(DOMAIN, population)


@given(domains(), unconstrained, seeds)
def test_a_child_without_edits_is_its_parent(domain: Domain, space: Space, seed: int) -> None:
    drawn = sample(domain, space, 0, 12, seed)
    parents = parents_of(domain, space, drawn)
    base, none = np.arange(12), np.zeros(12, dtype=np.int64)
    assert_same(make_edited(parents, base, none, 0, 0), parents.population)


@given(domains(elementwise=True), spaces, seeds)
def test_groups_of_children_are_contiguous_in_gradient_ready_order(
    domain: Domain, space: Space, seed: int
) -> None:
    parents = designs_and_draws(domain, space, seed)
    rng = np.random.default_rng(seed)
    base, edits = rng.integers(len(parents), size=24), rng.integers(1, 6, size=24)
    children = make_edited(parents_of(domain, space, parents), base, edits, 0, seed % 2**32)
    check_groups(domain, children)


def test_neighbours_improve_what_they_begin_with_whatever_the_threads() -> None:
    first = sample(DOMAIN, SMALL, 0, 64, 0)
    best, of_best = fastest(first, predict(first), 4)
    near, of_near = neighbours_of(DOMAIN, SMALL, best.take([3]), predict, 1500, 1, 32)
    assert of_near[0] < of_best[3]
    assert len(near) == len(of_near) == 32
    np.testing.assert_array_equal(predict(near), of_near)
    again, _ = neighbours_of(DOMAIN, SMALL, best.take([3]), predict, 1500, 1, 32, threads=1)
    assert_same(near, again)


def test_a_local_search_improves_what_it_begins_from() -> None:
    parent = parents_among(
        DOMAIN, encode([dict(hand_designed(DOMAIN, Space()))["ps_pieces_4mb_priority"]], DOMAIN)
    )
    found, seconds = searched_from(DOMAIN, SMALL, parent, predict, 1024, 1, 32)
    again, _ = searched_from(DOMAIN, SMALL, parent, predict, 1024, 1, 32, threads=1)
    assert_same(found, again)
    assert seconds[0] < predict(parent)[0]
    assert (np.diff(seconds) > 0).all()
    assert set(found.order) <= {Order.FIFO, Order.PRIORITY, Order.EXPLICIT}


def test_a_short_search_looks_at_no_more_than_it_is_asked_for() -> None:
    looked_at: list[int] = []

    def counted(population: Population) -> np.ndarray:
        looked_at.append(len(population))
        return predict(population)

    first = sample(DOMAIN, SMALL, 0, 4, 0)
    found, _ = searched_from(DOMAIN, SMALL, first, counted, 16, 1, 32)
    assert sum(looked_at) == len(first) + 16
    assert len(found)


def test_a_search_from_many_finds_more_than_as_many_random_draws() -> None:
    first = sample(DOMAIN, SMALL, 0, 64, 0)
    found, seconds = searched_from(DOMAIN, SMALL, first, predict, 1536, 0, 32)
    random = sample(DOMAIN, SMALL, 64, 1536, 0)
    of_random = fastest(random, predict(random), 32)[1]
    assert seconds[0] <= predict(first).min()
    assert seconds.mean() < of_random.mean()
    assert len(found) == 32


def test_impossible_strategies_and_equal_seconds_are_left_out() -> None:
    drawn = sample(DOMAIN, SMALL, 0, 6, 0)
    kept, seconds = fastest(drawn, np.array([3.0, np.inf, 1.0, np.nan, 3.0, 2.0]), 8)
    assert seconds.tolist() == [1.0, 2.0, 3.0]
    assert_same(kept, drawn.take([2, 5, 0]))


def test_ddp_and_owners_beside_the_training_ranks_are_no_parents() -> None:
    strategies = dict(hand_designed(DOMAIN, Space()))
    population = encode(
        [strategies["ddp"], strategies["dear"], strategies["ps_load_balanced"]], DOMAIN
    )
    assert_same(parents_among(DOMAIN, population), population.take([1, 2]))
    population.server[population.first[2]] = DOMAIN.world_size
    assert_same(parents_among(DOMAIN, population), population.take([1]))
    assert len(parents_among(DOMAIN, population.take([]))) == 0
