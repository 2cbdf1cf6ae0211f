"""Proposals that lag are owned by servers throughout, and leave the others as they were."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from autosync.codes import Method
from autosync.domain import Domain
from autosync.extensions.staleness.document import iterations_of as late_of
from autosync.extensions.staleness.prediction import iterations_of
from autosync.population import Population, decode, encode
from autosync.search.designs.design_table import hand_designed
from autosync.search.edits.local_search import refined
from autosync.search.edits.small_edits import make_edited, parents_of
from autosync.search.extension_proposals import kept_extensions
from autosync.search.loop.proposing import propose
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import MemoryStore
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import AllReduce, Encoding, VariableChoice, whole
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.search.drawn_domains import domains, seeds, spaces
from tests.search.edits.strategies import parents_among
from tests.search.sampler.test_sampling import assert_same

SHAPES = ((300, 64), (64,), (128, 64), (128,), (10, 128), (1000, 48), (10,))
DOMAIN = domain_of(chain_graph(SHAPES), grid_cluster(2, 2))
LATE = (0, 1, 4)
SPACE = Space(whole_below_bytes=1000, staleness=LATE, shard_methods=True, idle_gathers=True)


def checked(population: Population, domain: Domain) -> set[int]:
    """The staleness of all, each of which runs."""
    for index in range(len(population)):
        verify(decode(population, index, domain), domain, allow_lossy=True, allow_inexact=True)
    return set(iterations_of(population).tolist())


def methods(population: Population, index: int) -> set[int]:
    return set(population.method[population.first[index] : population.first[index + 1]].tolist())


def test_variables_that_lag_are_owned_by_servers() -> None:
    drawn = sample(DOMAIN, SPACE, 0, 600, 0)
    assert checked(drawn, DOMAIN) == set(LATE)
    assert 0.6 < (iterations_of(drawn) > 0).mean() < 0.73
    for index in np.flatnonzero(iterations_of(drawn)).tolist():
        assert methods(drawn, index) == {Method.PARAMETER_SERVER}
    assert np.array_equal(kept_extensions(drawn), drawn.extension)


def test_strategies_that_do_not_lag_are_drawn_as_without_staleness() -> None:
    drawn, without = (
        sample(DOMAIN, space, 0, 300, 5) for space in (SPACE, replace(SPACE, staleness=(0,)))
    )
    rows = np.flatnonzero(iterations_of(drawn) == 0)
    assert_same(drawn.take(rows), replace(without.take(rows), extensions=drawn.extensions))


@given(domains(), spaces, seeds)
def test_every_late_proposal_verifies(domain: Domain, space: Space, seed: int) -> None:
    checked(sample(domain, replace(space, staleness=LATE), 0, 24, seed), domain)


@pytest.mark.parametrize(
    ("domain", "space"),
    [
        (domain_of(chain_graph(SHAPES, (0,)), grid_cluster(2, 2)), SPACE),
        (replace(DOMAIN, cluster=replace(DOMAIN.cluster, backend="nccl")), SPACE),
        (DOMAIN, replace(SPACE, parameter_server=False)),
        (DOMAIN, replace(SPACE, pins=(VariableChoice("v1", whole(SHAPES[1]), (AllReduce(0),)),))),
        (DOMAIN, replace(SPACE, encodings=(Encoding("bf16"),))),
    ],
    ids=["sparse", "nccl", "no servers", "pinned", "encoded"],
)
def test_no_strategy_lags_where_servers_cannot_run(domain: Domain, space: Space) -> None:
    assert not iterations_of(sample(domain, space, 0, 200, 0)).any()


@given(domains(), spaces, seeds)
def test_children_lag_where_they_can(domain: Domain, space: Space, seed: int) -> None:
    space = replace(space, staleness=LATE)
    parents = parents_among(domain, sample(domain, space, 0, 12, seed))
    rng = np.random.default_rng(seed % 2**32)
    base, edits = rng.integers(len(parents), size=48), rng.integers(1, 4, size=48)
    children = make_edited(parents_of(domain, space, parents), base, edits, 0, seed % 2**32)
    checked(children, domain)
    late = iterations_of(children) > 0
    assert np.array_equal(iterations_of(children)[late], iterations_of(parents)[base][late])


def test_designs_lag_where_the_space_allows_it() -> None:
    named = dict(hand_designed(DOMAIN, SPACE))
    late = {name: late_of(each) for name, each in named.items() if late_of(each)}
    assert late == {"clocked_servers_1": 1, "clocked_servers_4": 4}
    checked(encode(list(named.values()), DOMAIN), DOMAIN)
    assert not [s for _, s in hand_designed(DOMAIN, Space()) if late_of(s)]


def test_no_design_lags_on_nccl() -> None:
    nccl = replace(DOMAIN, cluster=replace(DOMAIN.cluster, backend="nccl"))
    assert not [each for _, each in hand_designed(nccl, SPACE) if late_of(each)]


def test_a_refined_design_still_runs() -> None:
    design = dict(hand_designed(DOMAIN, SPACE))["clocked_servers_1"]
    for seed in range(4):
        better = refined(design, DOMAIN, SPACE, seed, 256)
        assert late_of(better) == 1
        verify(better, DOMAIN, allow_inexact=True)


def test_a_tuning_proposes_what_lags() -> None:
    store, limits = MemoryStore(), Settings(budget=40, proposals=300)
    space, predict = replace(SPACE, max_parts=2), TimelineSimulator()
    for _ in range(2):
        proposals = propose(DOMAIN, space, predict, store, limits, 12, lambda event: None)
        store.propose(proposals)
    strategies = [proposal.candidate.strategy for proposal in store.proposals()]
    assert {late_of(each) for each in strategies} == set(LATE)
    checked(encode(strategies, DOMAIN), DOMAIN)
