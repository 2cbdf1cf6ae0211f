"""torch's own ways in the ranked list."""

from dataclasses import replace

import pytest

from autosync.cluster import Device
from autosync.domain import Domain, Optimizer
from autosync.errors import InvalidInput
from autosync.population import encode
from autosync.search.designs.design_table import (
    DESIGNS,
    TORCH_DESIGNS,
    check_any_fits,
    torch_designs,
)
from autosync.search.edits.local_search import refined
from autosync.search.loop.design_candidates import known_designs
from autosync.search.loop.outcome import is_ddp
from autosync.search.loop.ranking import ranking_context
from autosync.search.loop.sources import drawn_shortlist
from autosync.search.space import SPACES, Space
from autosync.simulator.message_digests import digests_of
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Encoding
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster, layered_graph
from tests.search.edits.strategies import parents_among
from tests.simulator.worked_examples import on_devices

GRAPH = layered_graph(((1000, 250),) * 12)
DOMAIN = domain_of(GRAPH, grid_cluster(2, 2), optimizer=Optimizer("adamw", True, 2))
LOSSY = Space(encodings=(Encoding(), Encoding("bf16"), Encoding("fp16"), Encoding("powersgd", 2)))


def with_memory(memory_gb: float) -> Domain:
    plain = replace(DOMAIN, cluster=grid_cluster(4))
    return on_devices(plain, Device("cpu", memory_gb=memory_gb))


def names(domain: Domain, space: Space) -> list[str]:
    return [name for name, _ in torch_designs(domain, space)]


def test_lossy_ways_are_there_only_where_loss_is_allowed() -> None:
    exact = ["fsdp2", "zero2", "hsdp", "hsdp_zero2"]
    assert names(DOMAIN, Space()) == exact
    assert names(DOMAIN, LOSSY) == [*exact, "ddp_bf16", "ddp_fp16", "ddp_powersgd_2"]
    assert names(DOMAIN, Space(sharded_parameters=False)) == []
    assert not TORCH_DESIGNS.keys() & DESIGNS.keys()
    for _, strategy in torch_designs(DOMAIN, LOSSY):
        verify(strategy, DOMAIN, allow_lossy=True)
        assert not is_ddp(strategy)


def test_engines_that_do_not_apply_are_left_out() -> None:
    assert names(replace(DOMAIN, cluster=grid_cluster(4)), Space()) == ["fsdp2", "zero2"]
    assert names(domain_of(chain_graph(), grid_cluster(2, 2)), Space()) == []
    sparse = replace(GRAPH.variables[0], sparse=True, touched_rows=2)
    embedded = replace(GRAPH, variables=(sparse, *GRAPH.variables[1:]))
    assert names(replace(DOMAIN, graph=embedded), Space()) == []


def test_all_are_different_and_none_is_changed_or_bred() -> None:
    strategies = [strategy for _, strategy in torch_designs(DOMAIN, LOSSY)]
    population = encode(strategies, DOMAIN)
    assert len(set(digests_of(DOMAIN, population))) == len(strategies)
    assert len(parents_among(DOMAIN, population)) == 0
    for strategy in strategies:
        assert refined(strategy, DOMAIN, LOSSY, seed=0, count=64) is strategy


def test_the_best_of_what_fits_is_ranked_where_ddp_does_not_fit() -> None:
    tight = with_memory(0.025)
    ranked = known_designs(tight, Space(), TimelineSimulator())
    assert ranked[0].origin == "ddp"
    assert {each.origin for each in ranked[1:]} == {"fsdp2", "zero2"}
    everything = known_designs(with_memory(1.0), Space(), TimelineSimulator())
    assert {"fsdp2", "zero2", "dear"} <= {each.origin for each in everything}


def test_the_space_fsdp2_has_ddp_and_shardings_alone() -> None:
    ranked = known_designs(DOMAIN, SPACES["fsdp2"], TimelineSimulator())
    assert ranked[0].origin == "ddp"
    assert {each.origin for each in ranked[1:]} == {"fsdp2", "zero2", "hsdp", "hsdp_zero2"}


def test_a_refusal_where_nothing_fits_has_the_numbers() -> None:
    check_any_fits(with_memory(0.025), Space())
    with pytest.raises(InvalidInput, match=r"none of \d+ .* fsdp2 needs least") as refused:
        check_any_fits(with_memory(0.010), Space())
    assert "Devices of 0.0" in refused.value.remedy
    assert refused.value.thing == "memory"


@pytest.mark.parametrize(("memory_gb", "sharded"), [(1.0, False), (0.025, True)])
def test_shardings_are_drawn_where_ddp_does_not_fit(memory_gb: float, sharded: bool) -> None:
    on = with_memory(memory_gb)
    context = ranking_context(on, TimelineSimulator(), "prediction", None, [])
    listed = drawn_shortlist(context, Space(), 64, 0, lambda done: None)
    assert len(listed)
    assert bool(listed.population.engine.any()) == sharded
    none = drawn_shortlist(context, Space(sharded_parameters=False), 64, 0, lambda done: None)
    assert not none.population.engine.any()
