"""What a domain makes of a graph whose parts do not run in every iteration."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.profiling import estimate_profile, profile_at_batch
from tests.domains import chain_graph, domain_of, grid_cluster


def rare(graph: ModelGraph, number: int, frequency: float) -> ModelGraph:
    """One operation, and the variable that it alone reads, in a share of the iterations."""
    operations, variables = list(graph.operations), list(graph.variables)
    operations[number] = replace(operations[number], frequency=frequency)
    variables[number] = replace(variables[number], frequency=frequency)
    return replace(graph, operations=tuple(operations), variables=tuple(variables))


def ready_at(domain: Domain, variable: int) -> float:
    return float(domain.timing.ready_seconds[domain.variables.ready[variable]])


def test_an_estimate_counts_an_operation_as_often_as_it_runs() -> None:
    graph = chain_graph()
    always = estimate_profile(graph, "v100", host_seconds=0.0)
    seldom = estimate_profile(rare(graph, 2, 0.25), "v100", host_seconds=0.0)
    for before, after in (
        (always.forward_seconds, seldom.forward_seconds),
        (always.backward_seconds, seldom.backward_seconds),
    ):
        assert after[2] == pytest.approx(before[2] / 4)
        assert after[:2] + after[3:] == before[:2] + before[3:]


@pytest.mark.parametrize("world", [2, 4])
def test_a_gradient_is_late_on_all_ranks_if_it_is_missing_on_one(world: int) -> None:
    graph = chain_graph()
    cluster = grid_cluster(world)
    last = graph.gradient_order[-2]
    always, seldom = domain_of(graph, cluster), domain_of(rare(graph, last, 0.5), cluster)
    profile = always.profile
    seldom = replace(seldom, profile=profile)
    end, share = sum(profile.backward_seconds), 0.5**world
    expected = share * ready_at(always, last) + (1 - share) * end
    assert ready_at(seldom, last) == pytest.approx(expected)
    others = list(graph.gradient_order[:-2])
    assert [ready_at(seldom, v) for v in others] == [ready_at(always, v) for v in others]
    assert np.all(np.diff(seldom.timing.ready_seconds) >= 0)


def test_equal_domains_are_one_key_and_others_of_the_same_names_are_not() -> None:
    """A hash reads few parts of a domain; what a cache finds by it is compared whole."""
    one, same = domain_of(), domain_of()
    other = replace(one, graph=rare(one.graph, 2, 0.25))
    assert hash(one) == hash(same) == hash(other)
    assert {one: "one", other: "other"}[same] == "one"
    assert one != other


@pytest.mark.parametrize("seconds", [-1e-3, 1e7, float("nan")])
def test_impossible_seconds_are_refused_by_their_value(seconds: float) -> None:
    domain = domain_of()
    with pytest.raises(InvalidInput, match="update_seconds"):
        replace(domain, profile=replace(domain.profile, update_seconds=seconds))
    forward = (seconds, *domain.profile.forward_seconds[1:])
    with pytest.raises(InvalidInput, match=f"forward_seconds holds {seconds}") as caught:
        replace(domain, profile=replace(domain.profile, forward_seconds=forward))
    assert caught.value.remedy


def test_a_variable_of_more_dimensions_than_a_table_holds_is_refused_at_once() -> None:
    """Not by whoever reads the table first: in a running job that is rank 0 alone."""
    assert domain_of(chain_graph(((1,) * 8,))).variables.dims.shape == (1, 8)
    with pytest.raises(InvalidInput, match="'v0' has 9 dimensions; at most 8"):
        domain_of(chain_graph(((1,) * 9,)))


def test_a_profile_of_inputs_of_another_size_is_refused() -> None:
    """As of sentences of 512 tokens, beside a graph of longer ones."""
    plain = domain_of()
    graph, profile = plain.graph, replace(plain.profile, forward_flops=plain.graph.forward_flops)
    assert replace(plain, profile=profile).profile.forward_flops == 6_000_000
    twice = replace(profile, batch_size=2 * graph.batch_size, forward_flops=12_000_000)
    joined = profile_at_batch(graph, [profile, twice])
    longer = tuple(replace(each, forward_flops=4 * 10**6) for each in graph.operations)
    for each in (profile, joined):
        with pytest.raises(InvalidInput, match=r"of 0\.006 GFLOP.*one of 0\.024") as refused:
            replace(plain, profile=each, graph=replace(graph, operations=longer))
        assert "package.module:function" in refused.value.remedy
    anew = tuple(replace(each, backward_flops=3 * 10**6) for each in graph.operations)
    replace(plain, profile=profile, graph=replace(graph, operations=anew))  # of checkpoints
