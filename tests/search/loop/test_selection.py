"""Selection: fast by prediction, of new messages, and unlike each other."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.population import Population, concatenate, encode
from autosync.search.designs import known_designs
from autosync.search.designs.building_blocks import assemble, collective
from autosync.search.loop.proposing import propose
from autosync.search.loop.selection import (
    STRETCHES,
    distinct_rows,
    message_shares,
    normalised,
    select,
    similarity,
)
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import MemoryStore
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.message_digests import digests_of, digests_of_strategies
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import AllReduce, Partition, Strategy, VariableChoice
from tests.domains import chain_graph, domain_of

DOMAIN = domain_of(chain_graph(((300, 64), (64,), (128, 64), (128,)), factor_rows=2))
EVERYTHING = 1 << 40


def one_bucket() -> Strategy:
    return assemble(DOMAIN, collective(DOMAIN, AllReduce(0)), limit_bytes=EVERYTHING)


def cut(strategy: Strategy, variable: int, parts: int) -> Strategy:
    """The same messages, a variable of which is cut."""
    choices = list(strategy.choices)
    [shard] = choices[variable].shards
    length = DOMAIN.graph.variables[variable].shape[0] // parts
    choices[variable] = VariableChoice(
        choices[variable].variable, Partition(0, (length,) * parts), (shard,) * parts
    )
    return replace(strategy, choices=tuple(choices))


def test_cuts_inside_of_a_message_make_no_difference() -> None:
    whole = one_bucket()
    strategies = [whole, cut(whole, 0, 3), cut(whole, 2, 4)]
    assert len({strategy.id for strategy in strategies}) == 3
    assert len(digests_of_strategies(DOMAIN, strategies)) == 1


@pytest.mark.parametrize(
    "other",
    [
        known_designs.ddp,
        known_designs.tree_all_reduce,
        known_designs.reduce_scatter_25mb,
        known_designs.dear,
        known_designs.all_reduce_per_variable,
        known_designs.ps_one_server,
    ],
)
def test_other_messages_are_told(other: object) -> None:
    assert callable(other)
    strategies = [known_designs.all_reduce_one_bucket(DOMAIN), other(DOMAIN)]
    assert len(digests_of_strategies(DOMAIN, strategies)) == 2


def test_digests_compare_between_populations() -> None:
    """Their tables of options differ: those of the sampler hold what the design does not use."""
    drawn = sample(DOMAIN, Space(), 0, 30, 0)
    alone = encode([one_bucket()], DOMAIN)
    joined = concatenate([drawn, alone])
    assert digests_of(DOMAIN, joined)[-1:] == digests_of(DOMAIN, alone)
    assert digests_of(DOMAIN, joined)[:30] == digests_of(DOMAIN, drawn)


def test_rows_that_repeat_or_are_known_are_left_out() -> None:
    whole, other = one_bucket(), known_designs.dear(DOMAIN)
    population = encode([whole, cut(whole, 0, 3), other, known_designs.zero1(DOMAIN)], DOMAIN)
    assert distinct_rows(DOMAIN, population).tolist() == [0, 2, 3]
    known = digests_of_strategies(DOMAIN, [other])
    assert distinct_rows(DOMAIN, population, known).tolist() == [0, 3]
    assert distinct_rows(DOMAIN, population.take([])).tolist() == []


def drawn_and_designs() -> Population:
    drawn = sample(DOMAIN, Space(whole_below_bytes=1000), 0, 20, 1)
    return concatenate([drawn, encode([one_bucket(), cut(one_bucket(), 0, 3)], DOMAIN)])


def test_equal_messages_are_wholly_alike_and_others_are_not() -> None:
    population = drawn_and_designs()
    shares = message_shares(DOMAIN, population)
    assert shares.sum(axis=1) == pytest.approx(np.ones(len(population)))
    digests = digests_of(DOMAIN, population)
    for index in range(len(population)):
        alike = similarity(shares, shares[index])
        assert ((alike >= 0.0) & (alike <= 1.0 + 1e-12)).all()
        assert (alike[[digest == digests[index] for digest in digests]] > 1 - 1e-12).all()
    assert similarity(shares, shares[0]).min() < 0.5


def test_likeness_follows_the_messages() -> None:
    """An all-reduce in slices is more like one in groups than like owners."""
    designs = [
        known_designs.all_reduce_per_variable,
        known_designs.all_reduce_5mb,
        known_designs.ps_load_balanced,
    ]
    shares = message_shares(DOMAIN, encode([design(DOMAIN) for design in designs], DOMAIN))
    grouped, owned = similarity(shares, shares[0])[1:]
    assert grouped > owned


def test_a_tuning_proposes_no_messages_twice() -> None:
    """Three variables: most of what is drawn compiles to the same few plans."""
    domain = domain_of(chain_graph(((64, 32), (64,), (16, 64))))
    store, settings = MemoryStore(), Settings(budget=40, proposals=300)
    for _ in range(6):
        store.propose(
            propose(domain, Space(), TimelineSimulator(), store, settings, 12, lambda event: None)
        )
    strategies = [proposal.candidate.strategy for proposal in store.proposals()]
    assert len(strategies) > 20
    assert len(digests_of_strategies(domain, strategies)) == len(strategies)


def test_shares_are_those_of_a_histogram_over_rows_of_kinds_and_views() -> None:
    """Written down plainly: a cell for each distinct row, in the rows' order."""
    population = drawn_and_designs()
    plans = compile_plans_fast(population, DOMAIN)
    owner = np.repeat(np.arange(len(plans)), np.diff(plans.first))
    place = np.arange(plans.messages) - plans.first[owner]
    counts = np.diff(plans.first)[owner]
    views = [
        np.zeros(plans.messages),
        np.floor(np.log2(np.maximum(plans.wire_bytes, 1))),
        np.where(plans.ready < 0, -1, STRETCHES * plans.ready // len(DOMAIN.graph.variables)),
        np.where(plans.gate < 0, -1, STRETCHES * plans.gate // len(DOMAIN.graph.operations)),
        STRETCHES * place // counts,
    ]
    sent = np.bincount(owner, weights=plans.wire_bytes)[owner]
    weight = 0.5 * plans.wire_bytes / sent + 0.5 / counts
    parts = []
    for view in views:
        rows = np.column_stack((plans.operation, plans.root, plans.ranks, view)).astype(np.int64)
        cells, cell = np.unique(rows, axis=0, return_inverse=True)
        table = np.zeros((len(plans), len(cells)))
        np.add.at(table, (owner, cell.reshape(-1)), weight)
        parts.append(table)
    expected = np.concatenate(parts, axis=1) / len(views)
    np.testing.assert_array_equal(message_shares(DOMAIN, population), expected)


DRAWN = message_shares(DOMAIN, sample(DOMAIN, Space(whole_below_bytes=1000), 0, 40, 0))


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_every_pick_is_the_greedy_minimum_of_equation_11(alpha: float) -> None:
    scores = np.random.default_rng(1).uniform(1, 2, 40)
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


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.integers(0, 50))
def test_picks_are_distinct_and_finite_scores_always_work(scores: list[float], k: int) -> None:
    picks = select(np.array(scores), DRAWN[: len(scores)], k, 0.5)
    assert len(picks) == len(set(picks.tolist())) == min(k, len(scores))
    assert normalised(np.array(scores)).min() == 0.0


def test_what_was_tried_counts_as_picked() -> None:
    """Two candidates, equally fast: the one that is like a tried strategy goes last."""
    reduced, owned = known_designs.all_reduce_5mb, known_designs.ps_pieces_4mb_priority
    strategies = [design(DOMAIN) for design in (reduced, owned, reduced)]
    shares = message_shares(DOMAIN, encode(strategies, DOMAIN))
    scores = np.array([1.0, 1.01])
    assert select(scores, shares[:2], 2, 0.5).tolist() == [0, 1]
    assert select(scores, shares[:2], 2, 5.0, shares[2:]).tolist() == [1, 0]
