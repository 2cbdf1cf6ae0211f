"""Selection: fast by prediction, unlike in messages."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.population import encode
from autosync.search.designs import known_designs
from autosync.search.loop.message_equality import message_shares
from autosync.search.loop.selection import normalised, select
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from tests.domains import chain_graph, domain_of

DOMAIN = domain_of(chain_graph(((300, 64), (64,), (128, 64), (128,)), factor_rows=2))
DRAWN = message_shares(DOMAIN, sample(DOMAIN, Space(whole_below_bytes=1000), 0, 40, 0))


def test_without_similarity_the_fastest_are_picked_in_order() -> None:
    scores = np.random.default_rng(0).permutation(40).astype(np.float64)
    assert select(scores, DRAWN, 6, 0.0).tolist() == np.argsort(scores)[:6].tolist()


def test_every_pick_is_the_greedy_minimum_of_equation_11() -> None:
    scores = np.random.default_rng(1).uniform(1, 2, 40)
    alpha = 0.7
    picks: list[int] = []
    cost = (scores - scores.min()) / np.median(scores - scores.min())
    for pick in select(scores, DRAWN, 10, alpha):
        totals = {}
        for i in set(range(40)) - set(picks):
            alike = [np.minimum(DRAWN[i], DRAWN[j]).sum() for j in picks]
            totals[i] = cost[i] + alpha * (np.mean(alike) if alike else 0.0)
        assert np.isclose(totals[pick], min(totals.values()))
        picks.append(int(pick))


def test_a_copy_waits_for_something_new() -> None:
    """Two equal strategies and another one: the other goes second."""
    strategies = [known_designs.all_reduce_5mb(DOMAIN), known_designs.all_reduce_5mb(DOMAIN)]
    population = encode([*strategies, known_designs.ps_pieces_4mb_priority(DOMAIN)], DOMAIN)
    scores, shares = np.array([1.0, 1.01, 1.01]), message_shares(DOMAIN, population)
    assert select(scores, shares, 3, 0.0).tolist() == [0, 1, 2]
    assert select(scores, shares, 3, 0.5).tolist() == [0, 2, 1]


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.integers(0, 50))
def test_picks_are_distinct_and_finite_scores_always_work(scores: list[float], k: int) -> None:
    picks = select(np.array(scores), DRAWN[: len(scores)], k, 0.5)
    assert len(picks) == len(set(picks.tolist())) == min(k, len(scores))
    assert normalised(np.array(scores)).min() == 0.0


def test_scale_and_unit_of_the_scores_do_not_matter() -> None:
    scores = np.random.default_rng(2).normal(size=40)
    expected = select(scores, DRAWN, 12, 0.5).tolist()
    assert select(scores * 1024.0 + 64.0, DRAWN, 12, 0.5).tolist() == expected


def test_what_was_tried_counts_as_picked() -> None:
    """Two candidates, equally fast: the one that is like a tried strategy goes last."""
    strategies = [
        known_designs.all_reduce_5mb(DOMAIN),
        known_designs.ps_pieces_4mb_priority(DOMAIN),
    ]
    shares = message_shares(DOMAIN, encode([*strategies, strategies[0]], DOMAIN))
    scores = np.array([1.0, 1.01])
    assert select(scores, shares[:2], 2, 0.5).tolist() == [0, 1]
    assert select(scores, shares[:2], 2, 5.0, shares[2:]).tolist() == [1, 0]
