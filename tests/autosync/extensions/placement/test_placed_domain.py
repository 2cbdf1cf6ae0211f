"""What a placement does to predicted seconds and bytes, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.placement.document import (
    PlacedModule,
    PlacedModules,
    evenly,
    in_proportion,
)
from autosync.extensions.placement.module_borders import moved_shares
from autosync.extensions.placement.prediction import (
    PlacedAccount,
    dealt_bytes,
    domain_with_placement,
    placement_accounts,
)
from autosync.extensions.placement.proposals import with_placement
from autosync.population import encode
from autosync.search.designs.known_designs import all_reduce_per_variable
from autosync.simulator.analytic import AnalyticSimulator
from autosync.simulator.explanation import explain
from autosync.simulator.learned.learned_simulator import LearnedSimulator
from autosync.simulator.memory.memory_check import check_memory, fitting_rows
from autosync.simulator.memory.peak_memory import memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.iteration_trace import simulate_trace
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Replica, Schedule, Strategy, even_replicas
from tests.placed_models import LAYERS, MEGABYTE, OUTPUT_BYTES, heavy_layers


def placed(domain: Domain, *placement: object) -> Strategy:
    return with_placement(all_reduce_per_variable(domain), domain, placement)  # type: ignore[arg-type]


def seconds(domain: Domain, placement: PlacedModules) -> tuple[float, float]:
    """Of layer 1, forward and backward, with its deals."""
    made = domain_with_placement(domain, even_replicas(domain.world_size), placement)
    return made.profile.forward_seconds[1], made.profile.backward_seconds[1]


def test_samples_move_where_divisions_differ() -> None:
    even, one = np.array([0.5, 0.5]), np.array([0.0, 1.0])
    assert moved_shares(even, one).tolist() == [[0.0, 0.5], [0.0, 0.5]]
    assert moved_shares(even, even).tolist() == [[0.5, 0.0], [0.0, 0.5]]


def test_one_device_computes_everybodys_samples_and_pays_four_deals() -> None:
    domain = heavy_layers(gbps=1.0)
    forward, backward = seconds(domain, (evenly("layer1", [1]),))
    deal = OUTPUT_BYTES * 8 / 1e9  # of two batches half moves
    latency = float(domain.cluster.latency_seconds().max())
    startup = 4e-4 + 2 * 2e-4 + latency  # gloo's assumed cost with two ranks
    assert forward == pytest.approx(2e-3 + 2 * (deal + startup) + startup, rel=1e-6)
    assert backward == pytest.approx(4e-3 + 2 * (deal + startup), rel=1e-6)


def test_a_module_is_as_slow_as_the_slowest_of_its_ranks() -> None:
    domain = heavy_layers((1.0, 3.0), gbps=1e6)
    slowest = 3.0
    on_fast, _ = seconds(domain, (evenly("layer1", [0]),))
    fair, _ = seconds(domain, (in_proportion("layer1", [0, 1], [1.0, 1 / 3]),))
    even, _ = seconds(domain, (evenly("layer1", [0, 1]),))
    latency = float(domain.cluster.latency_seconds().max())
    startups = 3 * (4e-4 + 2 * 2e-4 + latency) / slowest
    assert on_fast == pytest.approx(2e-3 / slowest + startups, rel=2e-3)
    assert fair == pytest.approx(1.5e-3 / slowest + startups, rel=2e-3)
    assert even == pytest.approx(1e-3 + startups, rel=2e-3)


def test_a_variable_on_one_device_costs_no_message() -> None:
    slow_network = heavy_layers(gbps=0.05)
    whole = all_reduce_per_variable(slow_network)
    one = placed(slow_network, *(evenly(f"layer{i}", [i % 2]) for i in range(1, LAYERS)))
    population = encode([whole, one], slow_network)
    for simulator in (TimelineSimulator(), AnalyticSimulator()):
        before, after = simulator.predict(slow_network, population)
        assert after < before / 2
    # One layer of four is all-reduced still: its megabyte takes 2 x 1/2 of it at 50 Mbit/s.
    assert after > MEGABYTE * 8 / 0.05e9


def test_two_speeds_of_devices_gain_by_proportional_modules() -> None:
    domain = heavy_layers((1.0, 4.0), gbps=100.0)
    fair = [in_proportion(f"layer{i}", [0, 1], [1.0, 0.25]) for i in range(1, LAYERS)]
    predicted = TimelineSimulator().predict(
        domain, encode([all_reduce_per_variable(domain), placed(domain, *fair)], domain)
    )
    assert predicted[1] < predicted[0]


def test_a_trace_and_an_explanation_agree_with_the_prediction() -> None:
    domain = heavy_layers((1.0, 2.0))
    strategy = placed(domain, evenly("layer2", [0]))
    population = encode([strategy], domain)
    predicted = float(TimelineSimulator().predict(domain, population)[0])
    trace = simulate_trace(compile_plans_fast(population, domain), population, domain)
    assert trace.step_seconds == predicted
    assert explain(domain, strategy).step_seconds == pytest.approx(predicted)


def test_a_learned_simulator_takes_the_timelines_seconds_of_placed_modules() -> None:
    domain = heavy_layers((1.0, 2.0))
    whole = all_reduce_per_variable(domain)
    population = encode([whole, placed(domain, evenly("layer2", [0])), whole], domain)
    predicted = LearnedSimulator().predict(domain, population)
    assert predicted == pytest.approx(TimelineSimulator().predict(domain, population))


def peaks(domain: Domain, strategy: Strategy) -> list[float]:
    return peaks_of(domain, [strategy])[0]


def peaks_of(domain: Domain, strategies: list[Strategy]) -> list[list[float]]:
    population = encode(strategies, domain)
    plans = compile_plans_fast(population, domain)
    found: list[list[float]] = memory_of(domain).peak_bytes(plans, population).tolist()
    return found


def test_a_rank_holds_no_more_than_its_own_modules() -> None:
    domain = heavy_layers()
    before = peaks(domain, all_reduce_per_variable(domain))
    after = peaks(domain, placed(domain, evenly("layer1", [1]), evenly("layer2", [1])))
    # Values, gradient buffers and Adam's two tensors of two layers are not on rank 0.
    assert before[0] - after[0] == pytest.approx(2 * 4 * MEGABYTE, abs=20 * OUTPUT_BYTES)
    assert after[1] - before[1] == pytest.approx(0, abs=20 * OUTPUT_BYTES)


def dealt(*placement: PlacedModule) -> list[float]:
    """Bytes of each rank, in outputs of a layer."""
    domain = heavy_layers()
    found = dealt_bytes(domain, placement, np.ones(domain.world_size), on_gpu=False)
    return [each / OUTPUT_BYTES for each in found.tolist()]


def test_a_copy_of_samples_that_stay_stands_in_the_originals_place() -> None:
    # A layer keeps its input alone, so that nobody keeps what was dealt once it is.
    assert dealt(evenly("layer1", [0, 1])) == [0.0, 0.0]
    # Rank 1 keeps the inputs of both, one more than its own; rank 0 the output that comes back.
    assert dealt(evenly("layer1", [1])) == [1.0, 1.0]
    assert dealt(PlacedModule("layer1", (0, 1), (0.75, 0.25))) == [0.5, 0.5]
    domain = heavy_layers()
    whole = all_reduce_per_variable(domain)
    both = placed(domain, evenly("layer1", [0, 1]))
    assert peaks(domain, both) == pytest.approx(peaks(domain, whole))


def test_gradients_last_as_long_as_without_placement() -> None:
    """Those of cut variables until the next are packed, those of several batches until the last."""
    domain = heavy_layers()
    wide = tuple(replace(each, output_bytes=10 * MEGABYTE) for each in domain.graph.operations)
    domain = replace(domain, graph=replace(domain.graph, operations=wide))
    plain = all_reduce_per_variable(domain)
    sliced = replace(plain, schedule=Schedule(slice_bytes=MEGABYTE // 2))
    for each in (domain, replace(domain, accumulate=3)):
        for strategy in (plain, sliced):
            everywhere = with_placement(strategy, each, (evenly("layer1", [0, 1]),))
            assert peaks(each, everywhere) == pytest.approx(peaks(each, strategy))


def test_placed_and_plain_strategies_are_counted_together_as_each_alone() -> None:
    domain = heavy_layers((1.0, 3.0))
    whole = all_reduce_per_variable(domain)
    strategies = [
        placed(domain, evenly("layer1", [1])),
        whole,
        placed(domain, in_proportion("layer2", [0, 1], [3.0, 1.0])),
        placed(domain, evenly("layer1", [0]), evenly("layer2", [1])),
    ]
    assert peaks_of(domain, strategies) == [peaks(domain, each) for each in strategies]


def test_a_model_that_does_not_fit_one_device_fits_in_parts() -> None:
    domain = heavy_layers(memory_gb=0.015)
    whole = all_reduce_per_variable(domain)
    parts = placed(domain, evenly("layer1", [1]), evenly("layer2", [0]))
    assert fitting_rows(domain, encode([whole, parts], domain)).tolist() == [1]
    check_memory(parts, domain)
    with pytest.raises(InvalidStrategy, match="does not fit"):
        check_memory(whole, domain)
    with pytest.raises(InvalidStrategy, match="rank 1"):
        check_memory(placed(domain, evenly("layer1", [1]), evenly("layer2", [1])), domain)


THREE = heavy_layers((1.0, 1.0, 1.0))


def accounts(*placement: PlacedModule) -> list[PlacedAccount]:
    strategy = with_placement(all_reduce_per_variable(THREE), THREE, placement)
    return placement_accounts(THREE, strategy)


def test_one_device_of_three() -> None:
    """Two thirds of three batches go there; samples in and out, gradients in and out."""
    (found,) = accounts(evenly("layer1", [1]))
    assert found.variable_bytes == MEGABYTE
    assert found.unsent_bytes == 2 * 2 * MEGABYTE
    assert found.dealt_bytes == pytest.approx(4 * 2 * OUTPUT_BYTES, abs=1)
    assert found.in_words(3) == (
        "layer1 (1.0 MB of variables) on rank 1: 4.0 MB of gradients no longer travel, "
        "32.8 kB of samples and their gradients are dealt an iteration"
    )


def test_two_ranks_still_exchange_their_gradients() -> None:
    (found,) = accounts(evenly("layer1", [0, 2]))
    assert found.unsent_bytes == 2 * MEGABYTE
    assert "on ranks 0, 2:" in found.in_words(3)


def test_all_ranks_by_shares_save_nothing() -> None:
    (found,) = accounts(in_proportion("layer1", range(3), (2.0, 1.0, 1.0)))
    assert found.unsent_bytes == 0
    assert "on all ranks by 50%, 25%, 25%:" in found.in_words(3)
    assert "no longer travel" not in found.in_words(3)


def test_modules_placed_on_every_replica_are_not_split() -> None:
    strategy = with_placement(
        all_reduce_per_variable(THREE), THREE, (in_proportion("layer1", range(3), (2.0, 1.0, 1.0)),)
    )
    shares = tuple(Replica(rank, share) for rank, share in enumerate((0.5, 0.25, 0.25)))
    (found,) = placement_accounts(THREE, replace(strategy, replicas=shares))
    assert found.dealt_bytes == 0


def test_an_explanation_has_them() -> None:
    plain = all_reduce_per_variable(THREE)
    assert explain(THREE, plain).extensions == ()
    explained = explain(THREE, with_placement(plain, THREE, (evenly("layer1", [1]),)))
    ((key, words),) = explained.extensions
    assert key == "placement"
    assert words.startswith("layer1 (1.0 MB")
