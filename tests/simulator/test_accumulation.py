"""Updates that add up the gradients of several batches: seconds, the limit, memory and what is
learned from their trials."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Cluster, Device, Node
from autosync.documents import from_json, to_json
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.models import bundled
from autosync.nccl_knobs import NcclKnobs
from autosync.plan import PlanTable
from autosync.population import Population, encode
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs.design_table import DESIGNS, hand_designed
from autosync.search.designs.known_designs import ddp
from autosync.search.space import Space
from autosync.simulator.analytic import AnalyticSimulator
from autosync.simulator.learned.learned_simulator import LearnedSimulator
from autosync.simulator.limit import iteration_limit
from autosync.simulator.memory.memory_check import most_peak_bytes
from autosync.simulator.memory.peak_memory import memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.sharded_strategy import fully_sharded, sharded_by
from autosync.simulator.timeline import timeline_simulator
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import AllGather, AllReduce, Factors
from autosync.torch_engine import FullyShard, Kept
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.search.sampler.test_sharded_draws import DOMAIN as LAYERED
from tests.simulator.worked_examples import strategy_of

SMALL = domain_of(chain_graph(), grid_cluster(2), 2e-4)


def with_batches(domain: Domain, batches: int) -> Domain:
    return replace(domain, accumulate=batches)


def a100s() -> Domain:
    graph = bundled("bert_base", 8)
    profile = profile_from_step_seconds(graph, 0.1, "a100")
    nodes = tuple(Node(f"10.0.0.{i}", (Device("a100", 8),), 400.0, 1880.0) for i in (1, 2))
    cluster = Cluster("two nodes", nodes, "nccl", transport="infiniband")
    return Domain(graph, cluster, replace(profile, update_seconds=0.01))


@pytest.mark.parametrize("simulator", [TimelineSimulator(), AnalyticSimulator()])
def test_gradients_travel_once_but_under_fully_shard(
    simulator: TimelineSimulator | AnalyticSimulator,
) -> None:
    domain = a100s()
    population = encode([ddp(domain), fully_sharded(domain, 16)], domain)
    once = simulator.predict(domain, population)
    four = simulator.predict(with_batches(domain, 4), population)
    assert four[0] == pytest.approx(once[0] + 3 * 0.1)
    of_batch = TimelineSimulator().predict(domain, population)[1] - 0.01 / 16  # without the update
    assert four[1] == pytest.approx(once[1] + 3 * of_batch)


def test_knobs_of_nccl_hold_in_all_batches() -> None:
    domain = a100s()
    plain = fully_sharded(domain, 16)
    population = encode([plain, plain.carrying(NcclKnobs(max_ctas=1))], domain)
    once = TimelineSimulator().predict(domain, population)
    four = TimelineSimulator().predict(with_batches(domain, 4), population)
    assert once[1] > 1.1 * once[0]
    assert four == pytest.approx(once + 3 * (once - 0.01 / 16))


def test_the_limit_holds_the_compute_of_all_batches() -> None:
    one, four = iteration_limit(SMALL), iteration_limit(with_batches(SMALL, 4))
    assert four.seconds == pytest.approx(one.seconds + 3 * one.compute_seconds)
    late = Space(staleness=(0, 4))
    assert iteration_limit(with_batches(SMALL, 4), late).seconds <= four.seconds


def test_rows_and_factors_of_all_batches_travel() -> None:
    graph = chain_graph(((400, 16), (64, 32), (48,)), sparse=(0,), factor_rows=4)
    one = domain_of(graph, grid_cluster(2))
    (touched, *_), (_, rows, _) = one.variables.touched_rows, one.variables.factor_rows
    three = with_batches(one, 3).variables
    assert (three.touched_rows[0], three.factor_rows[1]) == (min(3 * touched, 400), 3 * rows)
    assert with_batches(one, 1000).variables.touched_rows[0] == 400


def test_a_domain_is_another_one_with_other_batches() -> None:
    assert "accumulate" not in to_json(SMALL)
    four = with_batches(SMALL, 4)
    assert four.id != SMALL.id
    assert from_json(Domain, to_json(four)) == four
    for batches in (0, 100_000):
        with pytest.raises(InvalidInput, match=f"{batches} batches"):
            with_batches(SMALL, batches)


def test_gradients_of_the_batches_before_take_memory() -> None:
    (one,) = most_peak_bytes(SMALL, [ddp(SMALL)])
    four = with_batches(SMALL, 4)
    (several,) = most_peak_bytes(four, [ddp(four)])
    assert one < several <= one + SMALL.graph.size_bytes


def test_gradients_of_the_batches_before_are_beside_their_buffers_until_these_are_packed() -> None:
    """As `benchmarks/peak_memory.py --accumulate 3` measures it."""
    held = []
    for domain in (SMALL, with_batches(SMALL, 3)):
        population = encode([DESIGNS["all_reduce_25mb"](domain)], domain)
        plans = compile_plans_fast(population, domain)
        held += list(memory_of(domain).moment_bytes(plans, population, [0]))
    more = held[1] - held[0]
    assert more[:, :-1] == pytest.approx(SMALL.graph.size_bytes)
    assert more[:, -1] == pytest.approx(0.0)  # the update


def test_memory_follows_what_is_kept_between_batches() -> None:
    units = tuple(f"layers.{i}" for i in range(10))
    kept: tuple[Kept, ...] = ("", "gradients", "values")
    four = with_batches(LAYERED, 4)
    strategies = [
        sharded_by(four, FullyShard(units, 4, kept_between_batches=each)) for each in kept
    ]
    parts, gradients, values = most_peak_bytes(four, strategies)
    (once, *_) = most_peak_bytes(LAYERED, strategies)
    assert once < parts < gradients < values
    assert gradients - parts < LAYERED.graph.size_bytes
    assert values < 3 * LAYERED.graph.size_bytes + parts


def test_a_learner_counts_the_rows_and_factors_of_all_batches() -> None:
    graph = chain_graph(((400, 16), (64, 32), (48,)), sparse=(0,), factor_rows=4)
    four = with_batches(domain_of(graph, grid_cluster(2, gbps=0.01)), 4)
    kinds = (AllGather(0), Factors(1), AllReduce(2))
    population = encode([strategy_of(four, lambda v: kinds[v])], four)
    expected = TimelineSimulator().predict(four, population)
    assert LearnedSimulator().predict(four, population) == pytest.approx(expected)


def designs() -> Population:
    return encode([each for _, each in hand_designed(SMALL, Space())], SMALL)


def test_what_is_learned_is_about_the_last_batch() -> None:
    """As much is learned from trials with four batches as from those with one."""
    population, four = designs(), with_batches(SMALL, 4)
    last = TimelineSimulator().predict(SMALL, population)
    before = TimelineSimulator().predict(four, population) - last
    measured = last * np.linspace(1.2, 1.6, len(last))
    of_one, of_four = LearnedSimulator(), LearnedSimulator()
    of_one.refit(SMALL, population, measured)
    of_four.refit(four, population, before + measured)
    predicted, std = of_one.predict_with_std(SMALL, population)
    seconds, less = of_four.predict_with_std(four, population)
    assert seconds == pytest.approx(before + predicted)
    assert less == pytest.approx(std * predicted / seconds)
    assert not np.allclose(predicted, last)


def test_batches_before_the_last_want_no_second_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """But where they wait for messages."""
    compiled: list[int] = []

    def counted(population: Population, domain: Domain) -> PlanTable:
        compiled.append(len(population))
        return compile_plans_fast(population, domain)

    monkeypatch.setattr(timeline_simulator, "compile_plans_fast", counted)
    four = with_batches(LAYERED, 4)
    mixed = [ddp(four), DESIGNS["dear"](four), fully_sharded(four, four.world_size)]
    for strategies, again in ((mixed[:2], []), (mixed, [1])):
        compiled.clear()
        population = encode(strategies, four)
        seconds = LearnedSimulator().predict(four, population)
        assert compiled == again
        assert seconds.tolist() == TimelineSimulator().predict(four, population).tolist()


def test_trials_whose_compute_was_not_as_predicted_teach_nothing() -> None:
    population, four = designs(), with_batches(SMALL, 4)
    plain = TimelineSimulator().predict(four, population)
    learned = LearnedSimulator()
    learned.refit(four, population, 0.5 * plain)
    assert learned.predict(four, population) == pytest.approx(plain)
