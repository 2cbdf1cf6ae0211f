"""Random strategies of the space `fsdp2`."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Device
from autosync.domain import Domain, Optimizer
from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.population import Population, decode, encode
from autosync.search.designs.torch_engines import fsdp2
from autosync.search.edits.sharded_edits import neighbours_of_sharding
from autosync.search.loop.ranking import ranking_context
from autosync.search.loop.sources import drawn_shortlist
from autosync.search.sampler.sampling import sample
from autosync.search.sampler.sharded_draws import sharding_choices
from autosync.search.space import SPACES, Space
from autosync.simulator.memory.memory_check import most_peak_bytes
from autosync.simulator.sharded_strategy import sharded_by
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import EXACT, Encoding, Strategy
from autosync.torch_engine import FullyShard, modules_of
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster, layered_graph
from tests.simulator.worked_examples import on_devices

SPACE = SPACES["fsdp2"]
DRAWN = 64


def recorded(graph: ModelGraph) -> ModelGraph:
    """Operations called by the modules that own their variables."""
    operations = tuple(
        replace(each, name=f"{graph.variables[each.variables[0]].name.removesuffix('.weight')}.mm")
        for each in graph.operations
    )
    return replace(graph, operations=operations)


GRAPH = recorded(layered_graph(((1000, 250),) * 12))
GPUS = replace(grid_cluster(2, 2), backend="nccl")
DOMAIN = domain_of(GRAPH, GPUS, optimizer=Optimizer("adamw", True, 2))


def engines(domain: Domain, space: Space = SPACE) -> list[FullyShard]:
    population = sample(domain, space, 0, DRAWN, 0)
    found = [decode(population, index, domain) for index in range(DRAWN)]
    for strategy in found:
        verify(strategy, domain, allow_lossy=len(space.encodings) > 1)
    return [strategy.engine for strategy in found if strategy.engine is not None]


def test_draws_run_and_vary_in_everything() -> None:
    found = engines(DOMAIN)
    assert len(found) == DRAWN
    assert {each.shard_ranks for each in found} == {2, 4}
    assert {each.smaller_groups for each in found if each.shard_ranks == 4} == {(), (2,)}
    assert {each.smaller_groups for each in found if each.shard_ranks == 2} == {()}
    assert {each.forward_prefetch for each in found} == {1, 2, 3}
    assert {each.backward_prefetch for each in found} == {1, 2, 3}
    assert {type(each.reshard_after_forward) for each in found} >= {bool, tuple}
    assert {True, False} <= {each.reshard_after_forward for each in found}
    assert min(len(each.units) for each in found) == 1
    assert max(len(each.units) for each in found) == 12
    order = [f"layers.{i}" for i in range(10)]
    for each in found:
        names = [module for unit in each.units for module in modules_of(unit)]
        assert [name for name in names if name in order] == order  # neighbours stay neighbours
    apart = [{"first", "last"} & {m for u in each.units for m in modules_of(u)} for each in found]
    assert {frozenset(each) for each in apart} == {
        frozenset(), frozenset({"first"}), frozenset({"last"}), frozenset({"first", "last"}),
    }  # fmt: skip


def test_a_draw_is_its_seed_and_index() -> None:
    whole, part = sample(DOMAIN, SPACE, 0, 12, 5), sample(DOMAIN, SPACE, 7, 2, 5)
    for index in (0, 1):
        assert decode(part, index, DOMAIN) == decode(whole, 7 + index, DOMAIN)
    assert decode(part, 0, DOMAIN) != decode(sample(DOMAIN, SPACE, 7, 1, 6), 0, DOMAIN)


def test_a_draw_is_the_same_from_its_document() -> None:
    population = sample(DOMAIN, SPACE, 0, 8, 1)
    again = encode([decode(population, index, DOMAIN) for index in range(8)], DOMAIN)
    seconds = TimelineSimulator().predict
    assert (seconds(DOMAIN, again) == seconds(DOMAIN, population)).all()
    assert (again.group == population.group).all()


def test_what_the_domain_does_not_have_is_not_drawn() -> None:
    gloo = replace(DOMAIN, cluster=grid_cluster(2, 2))
    assert {each.forward_prefetch for each in engines(gloo)} == {1}
    one = replace(GPUS.nodes[1], devices=(Device("cpu"),))
    uneven = replace(DOMAIN, cluster=replace(GPUS, nodes=(GPUS.nodes[0], one)))
    assert {(each.shard_ranks, each.smaller_groups) for each in engines(uneven)} == {(3, ())}
    lone = replace(DOMAIN, cluster=replace(grid_cluster(4), backend="nccl"))
    assert {each.smaller_groups for each in engines(lone)} == {()}
    first, *others = GRAPH.operations
    tied = replace(GRAPH, operations=(first, *others[:-1], replace(others[-1], variables=(0, 11))))
    assert not {"first", "last"} & set(sharding_choices(replace(DOMAIN, graph=tied), SPACE).modules)


def test_gradients_are_reduced_in_halves_where_loss_is_allowed() -> None:
    def packed(population: Population) -> set[str]:
        return {population.options[each].encoding.name for each in np.unique(population.option)}

    lossy = replace(SPACE, encodings=(Encoding(), Encoding("bf16"), Encoding("powersgd", 2)))
    assert packed(sample(DOMAIN, SPACE, 0, 16, 0)) == {"none"}
    assert packed(sample(DOMAIN, lossy, 0, 16, 0)) == {"none", "bf16"}
    assert {each.param_dtype for each in engines(DOMAIN, lossy)} == {"", "bf16"}
    assert {each.param_dtype for each in engines(DOMAIN)} == {""}


def test_domains_that_torch_cannot_shard_are_refused() -> None:
    with pytest.raises(InvalidInput, match="'v1' has a sparse gradient") as refused:
        sample(domain_of(chain_graph(sparse=(1,)), GPUS), SPACE, 0, 1, 0)
    assert refused.value.remedy == "Leave the space out."  # a running job has no --space
    with pytest.raises(InvalidInput, match="tell no modules"):
        sample(domain_of(chain_graph(), GPUS), SPACE, 0, 1, 0)
    scaled = domain_of(layered_graph(((64, 32), (64, 32), (), (64, 32))), GPUS)
    with pytest.raises(InvalidInput, match=r"'layers\.1\.weight' has no dimension"):
        sample(scaled, SPACE, 0, 1, 0)


def test_a_unit_holds_one_type() -> None:
    halves = {f"layers.{i}.weight" for i in range(3, 10)}
    variables = tuple(
        replace(each, dtype="bfloat16") if each.name in halves else each for each in GRAPH.variables
    )
    mixed = replace(DOMAIN, graph=replace(GRAPH, variables=variables))
    found = engines(mixed)  # all verify
    assert max(len(modules_of(unit)) for each in found for unit in each.units) > 1
    blocks = FullyShard(tuple(f"layers.{i}" for i in range(10)), 4)
    near = list(neighbours_of_sharding((blocks, EXACT), sharding_choices(mixed, SPACE)))
    assert ("layers.0", "layers.1") in {unit for each, _ in near for unit in each.units}
    for engine, _ in near:
        verify(sharded_by(mixed, engine), mixed)
    other = replace(GRAPH.variables[2], name="layers.0.bias", dtype="bfloat16")
    inside = replace(GRAPH, variables=(*GRAPH.variables[:2], other, *GRAPH.variables[3:]))
    with pytest.raises(InvalidInput, match=r"module 'layers\.0' holds bfloat16 and float32"):
        sample(replace(DOMAIN, graph=inside), SPACE, 0, 1, 0)


def peak(strategy: Strategy) -> float:
    return most_peak_bytes(DOMAIN, [strategy])[0]


def test_memory_follows_the_choices() -> None:
    units = tuple(f"layers.{i}" for i in range(10))

    def of(engine: FullyShard, encoding: Encoding = Encoding()) -> float:  # noqa: B008  # frozen
        return peak(sharded_by(DOMAIN, engine, encoding))

    resharded, kept = FullyShard(units, 4), FullyShard(units, 4, False)
    some = FullyShard(units, 4, (True,) * 2 + (False,) * 8)
    merged = FullyShard((units[:5], units[5:]), 4)
    assert of(resharded) == peak(fsdp2(DOMAIN))
    assert of(resharded) < of(some) < of(kept)
    assert of(resharded) < of(replace(resharded, reshard_after_forward=2)) < of(kept)
    assert of(resharded) < of(merged)
    assert of(resharded) < of(replace(resharded, backward_prefetch=3))
    assert of(resharded, Encoding("bf16")) < of(resharded)
    assert of(replace(kept, param_dtype="bf16")) < 0.75 * of(kept)


def test_only_what_fits_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 2 * DRAWN
    monkeypatch.setattr("autosync.search.sampler.sampling.MOST_DRAWS", most)
    population = sample(DOMAIN, SPACE, 0, DRAWN, 0)
    peaks = most_peak_bytes(DOMAIN, [decode(population, i, DOMAIN) for i in range(DRAWN)])
    bound = float(np.median(peaks))
    tight = on_devices(DOMAIN, Device("cpu", 2, memory_gb=bound / 1e9))
    done: list[int] = []
    context = ranking_context(tight, TimelineSimulator(), "prediction", None, [])
    listed = drawn_shortlist(context, SPACE, 30_000, 0, done.append)
    assert done[-1] == most
    found = [decode(listed.population, index, tight) for index in range(len(listed))]
    assert found
    assert max(most_peak_bytes(DOMAIN, found)) <= bound
    assert len({each.id for each in found}) == len(found)


def test_what_is_kept_between_batches_is_drawn_where_there_are_several() -> None:
    assert {each.kept_between_batches for each in engines(DOMAIN)} == {""}
    several = {each.kept_between_batches for each in engines(replace(DOMAIN, accumulate=4))}
    assert several == {"", "gradients", "values"}
