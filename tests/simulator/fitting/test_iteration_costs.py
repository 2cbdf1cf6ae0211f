"""Trials that the timeline itself makes up, with costs unlike those that were probed."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.cluster import Cluster, Device, MessageCost, Node
from autosync.domain import Domain
from autosync.population import Population, encode
from autosync.simulator.cost.collective_costs import has_collective_model
from autosync.simulator.fitting.cost_parameters import (
    HOST_SECONDS,
    LINK_SECONDS_PER_SEND,
    PriorStd,
    cost_parameters,
    fit_regularized,
)
from autosync.simulator.fitting.iteration_costs import recalibrated
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.worked_examples import KINDS, random_strategy

TRIALS = 20


def probed(cluster: Cluster) -> Cluster:
    costs = tuple(MessageCost(kind, 1e-4, 1e-4, host_seconds=1e-4) for kind in KINDS)
    return replace(cluster, costs=costs)


def drawn(count: int) -> tuple[Domain, Population]:
    graph = chain_graph(((64, 256), (512, 64), (128, 512), (128, 128), (10, 1280)) * 3)
    domain = domain_of(graph, probed(grid_cluster(4, gbps=0.05)), 2e-3)
    rng = np.random.default_rng(3)
    return domain, encode([random_strategy(domain, rng) for _ in range(count)], domain)


def as_it_is(domain: Domain) -> Domain:
    """Pushes cost more than was probed, and compute is slower beside messages."""
    push = replace(domain.cluster.cost("send_recv"), host_seconds=4e-4, host_seconds_per_byte=6e-8)
    costs = tuple(push if each.kind == push.kind else each for each in domain.cluster.costs)
    slowed = replace(domain.cluster, overlap_slowdown=0.2, link_seconds_per_send=2e-5)
    return replace(domain, cluster=replace(slowed, costs=costs))


def test_the_first_trials_correct_the_predictions_of_others() -> None:
    domain, population = drawn(80)
    simulator = TimelineSimulator()
    noise = np.random.default_rng(1).lognormal(0.0, 0.02, len(population))
    seconds = simulator.predict(as_it_is(domain), population) * noise
    seconds[3] *= 3.0  # a trial that went wrong
    first, rest = np.arange(TRIALS), np.arange(TRIALS, 80)
    corrected = recalibrated(domain, population.take(first), seconds[first])
    unseen, measured = population.take(rest), seconds[rest]
    before = np.abs(np.log(simulator.predict(domain, unseen) / measured))
    after = np.abs(np.log(simulator.predict(corrected, unseen) / measured))
    assert np.median(after) < np.median(before) / 2
    assert np.quantile(after, 0.9) < np.quantile(before, 0.9) / 2
    assert replace(corrected, cluster=domain.cluster) == domain  # nothing else has changed


def test_too_few_trials_change_nothing_and_failed_ones_do_not_count() -> None:
    domain, population = drawn(12)
    seconds = TimelineSimulator().predict(as_it_is(domain), population)
    seconds[:5] = np.nan
    assert recalibrated(domain, population, seconds) is domain


def test_trials_leave_the_model_of_nccls_collectives_in_place() -> None:
    """Stated costs would replace it, and know neither trees nor NVLS."""
    nodes = tuple(Node(f"10.0.0.{i}", (Device("h100", 2),), 400.0, 2808.0, 5.0) for i in range(2))
    cluster = Cluster("two nodes", nodes, "nccl", transport="infiniband")
    domain = domain_of(chain_graph(), cluster)
    assert has_collective_model(cluster)
    rng = np.random.default_rng(3)
    population = encode([random_strategy(domain, rng) for _ in range(12)], domain)
    seconds = TimelineSimulator().predict(domain, population)
    assert recalibrated(domain, population, seconds) is domain


def test_trials_that_are_as_predicted_leave_predictions_where_no_cost_was_probed() -> None:
    """Costs that a cluster states hold the latencies of a message's steps; assumed ones do not."""
    near = grid_cluster(4, gbps=0.05)
    far = replace(near, nodes=tuple(replace(node, latency_us=5e3) for node in near.nodes))
    domain, population = drawn(40)
    domain = replace(domain, cluster=far)
    seconds = TimelineSimulator().predict(domain, population)
    corrected = recalibrated(domain, population.take(np.arange(TRIALS)), seconds[:TRIALS])
    assert corrected.cluster.costs
    found = TimelineSimulator().predict(corrected, population)
    assert np.quantile(np.abs(np.log(found / seconds)), 0.9) < 0.2


def test_costs_stay_possible_whatever_the_trials_say() -> None:
    domain, population = drawn(12)
    for factor in (0.05, 20.0):
        seconds = TimelineSimulator().predict(domain, population) * factor
        cluster = recalibrated(domain, population, seconds).cluster
        slowdown = cluster.overlap_slowdown
        assert slowdown is not None
        assert 0.0 <= slowdown <= 1.0
        assert 0.0 <= cluster.link_seconds_per_send <= LINK_SECONDS_PER_SEND[1]
        for cost in cluster.costs:
            assert min(cost.startup_seconds, cost.startup_seconds_per_worker) >= 0.0
            assert HOST_SECONDS[0] <= cost.host_seconds <= HOST_SECONDS[1]


@pytest.mark.parametrize("per_worker", [1e-4, 3e-5, 7e-6, 1.1e-4])
def test_a_startup_that_workers_alone_make_up_leaves_none_below_zero(per_worker: float) -> None:
    std = PriorStd(0.5, 0.5, 1e-5, 0.1, 0.1, 1e-5)
    for workers in range(2, 40):
        cost = MessageCost("all_reduce", 0.0, per_worker)
        cluster = replace(grid_cluster(workers), costs=(cost,))
        parameters = cost_parameters(cluster, ("all_reduce",), std)
        (fitted,) = parameters.cluster_with(np.zeros(6)).costs
        assert fitted.startup_seconds >= 0.0
        assert fitted.startup_seconds_per_worker == pytest.approx(per_worker)


WIDE = np.full(3, 50.0)


def slopes(rows: int) -> NDArray[np.float64]:
    """The third number is in no measurement."""
    both = np.random.default_rng(0).normal(size=(rows, 3))
    both[:, 2] = 0.0
    return both


def test_what_measurements_tell_is_found_and_the_rest_stays() -> None:
    lines, truth = slopes(40), np.array([2.0, -1.5, 0.0])
    found = fit_regularized(lambda x: lines @ x, lines @ truth, 0.01, -WIDE, WIDE, 20)
    assert found == pytest.approx(truth, abs=0.01)


def test_few_noisy_measurements_move_little() -> None:
    lines, truth = slopes(2), np.array([2.0, -1.5, 0.0])
    found = fit_regularized(lambda x: lines @ x, lines @ truth, 10.0, -WIDE, WIDE, 20)
    assert np.abs(found).max() < 0.1


def test_a_wild_measurement_pulls_little() -> None:
    lines, truth = slopes(40), np.array([2.0, -1.5, 0.0])
    measured = lines @ truth
    measured[7] += 100.0
    found = fit_regularized(lambda x: lines @ x, measured, 0.1, -WIDE, WIDE, 30)
    assert found == pytest.approx(truth, abs=0.1)


def test_bounds_hold() -> None:
    lines = slopes(40)
    low, high = np.array([-1.0, -1.0, 0.0]), np.array([1.0, 1.0, 0.0])
    found = fit_regularized(lambda x: lines @ x, lines @ [2.0, 0.5, 0.0], 0.01, low, high, 20)
    assert found[0] == 1.0
    assert -1.0 <= found[1] <= 1.0
    assert found[2] == 0.0
