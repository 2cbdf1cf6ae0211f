"""The greedy proposer, where what is best is known."""

from autosync.extensions.placement.document import evenly, modules_of
from autosync.extensions.placement.placeable_modules import modules_to_place
from autosync.extensions.placement.proposals import (
    PlacementEvaluator,
    device_sets,
    module_places,
    place_greedily,
)
from autosync.search.designs.known_designs import all_reduce_per_variable
from autosync.search.designs.list_schedule import list_schedule
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.verification import verify
from tests.domains import domain_of, grid_cluster
from tests.placed_models import LAYERS, MEGABYTE, Listed, Mixing, Wide, heavy_layers, recorded


def test_modules_that_may_be_placed_are_known_by_their_weight() -> None:
    found = {each.name: each for each in modules_to_place(recorded(Wide(), 2))}
    assert list(found) == [
        "first",
        "table",
        "block",
        "block.0",
        "block.2",
        "twice",
        "scale",
        "last",
    ]
    assert not found["block"].is_leaf
    assert found["block.0"].is_leaf
    assert found["block"].variable_bytes == 4 * (8 * 16 + 16 + 16 * 8 + 8)
    assert found["table"].flops == 0
    assert found["table"].bytes_per_flop > found["block"].bytes_per_flop
    assert {each.name for each in modules_to_place(recorded(Mixing(), 2))} == {
        "norm.0",
        "centred.linear",
    }


def test_a_list_of_modules_is_no_module_to_place() -> None:
    found = modules_to_place(recorded(Listed(), 2))
    assert [each.name for each in found] == ["body.0", "body.1", "body.2", "last"]


def test_slow_links_put_modules_on_single_devices() -> None:
    domain = heavy_layers(gbps=0.05)
    base = all_reduce_per_variable(domain)
    evaluator = PlacementEvaluator(domain, TimelineSimulator())
    before, found = evaluator.evaluate([base])[0], place_greedily(evaluator, base)
    assert found.step_seconds < before.step_seconds / 2
    assert len(modules_of(found.strategy)) == LAYERS - 1  # one stays with all ranks
    assert all(len(placed.ranks) == 1 for placed in modules_of(found.strategy))
    verify(found.strategy, domain)


def test_fast_links_leave_everything_where_it_is() -> None:
    domain = heavy_layers(gbps=1e6)
    base = list_schedule(domain)
    assert place_greedily(PlacementEvaluator(domain, TimelineSimulator()), base).strategy == base


def test_a_model_that_does_not_fit_is_placed_until_it_fits() -> None:
    domain = heavy_layers(gbps=1e6, memory_gb=0.015)
    evaluator = PlacementEvaluator(domain, TimelineSimulator())
    base = all_reduce_per_variable(domain)
    assert not evaluator.evaluate([base])[0].fits
    found = place_greedily(evaluator, base)
    assert found.fits
    held: list[set[str]] = [set(), set()]
    for placed in modules_of(found.strategy):
        for rank in placed.ranks:
            held[rank].add(placed.module)
    assert all(len(modules) < LAYERS for modules in held)
    assert domain.graph.size_bytes == LAYERS * MEGABYTE


def test_the_budget_holds() -> None:
    domain = heavy_layers(gbps=0.05)
    evaluator = PlacementEvaluator(domain, TimelineSimulator())
    place_greedily(evaluator, all_reduce_per_variable(domain), budget=7)
    assert evaluator.evaluations <= 7


def test_whoever_is_stopped_keeps_what_it_has_found() -> None:
    domain = heavy_layers(gbps=0.05)
    base = all_reduce_per_variable(domain)
    whole = place_greedily(PlacementEvaluator(domain, TimelineSimulator()), base)
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 2

    evaluator = PlacementEvaluator(domain, TimelineSimulator(), stop)
    found = place_greedily(evaluator, base)
    assert 0 < len(modules_of(found.strategy)) < len(modules_of(whole.strategy))
    assert place_greedily(evaluator, base).strategy == base


def test_places_are_devices_kinds_of_devices_nodes_and_shares_by_speed() -> None:
    nodes = domain_of(cluster=grid_cluster(2, 2))
    assert device_sets(nodes) == [(0,), (1,), (2,), (3,), (0, 1), (2, 3)]
    assert list(module_places(nodes, "m")) == [
        *(evenly("m", [rank]) for rank in range(4)),
        evenly("m", [0, 1]),
        evenly("m", [2, 3]),
    ]
    speeds = heavy_layers((1.0, 1.0, 4.0))
    assert device_sets(speeds) == [(0,), (1,), (2,), (0, 1)]
    fair = list(module_places(speeds, "m"))[-1]
    assert [round(share, 6) for share in fair.shares] == [0.444444, 0.444444, 0.111111]
