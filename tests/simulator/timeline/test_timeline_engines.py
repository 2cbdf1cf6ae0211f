"""Engines that need time for each message, and servers without replicas, worked out by hand."""

from dataclasses import replace

import pytest

from autosync.cluster import Backend, MessageCost
from autosync.domain import Domain
from autosync.simulator.explanation import explain
from autosync.strategy import AllReduce, ParameterServer
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, period, strategy_of

MEGABYTE = (250_000,)


def domain_with_engine(backend: Backend, engine_seconds: float) -> Domain:
    """Four megabytes, one gradient every 20 ms; a message takes 15 ms on the wire."""
    cluster = cluster_of(backend=backend)
    costs = (*cluster.costs, MessageCost("engine", engine_seconds))
    graph = chain_graph((MEGABYTE,) * 4)
    return domain_of(graph, replace(cluster, costs=costs), 10e-3)


def test_a_host_ahead_of_its_device_prepares_messages_while_others_are_in_flight() -> None:
    domain = domain_with_engine("nccl", 30e-3)
    # Prepared at 30, 60, 90, 120 ms whatever is ready or on the wire; the last arrives at 135.
    assert period(domain, strategy_of(domain, AllReduce)) == pytest.approx([0.135 + 0.040])
    swift = domain_with_engine("nccl", 10e-3)
    # Gradients come every 20 ms: an engine faster than that is not seen.
    assert period(swift, strategy_of(swift, AllReduce)) == pytest.approx([0.080 + 0.015 + 0.040])


def test_without_an_accelerator_the_engine_waits_for_each_gradient() -> None:
    domain = domain_with_engine("gloo", 30e-3)
    # From 20 ms on, when the first gradient is there: 50, 80, 110, 140; the last arrives at 155.
    assert period(domain, strategy_of(domain, AllReduce)) == pytest.approx([0.155 + 0.040])


def test_an_explanation_counts_the_engine_among_startups() -> None:
    domain = domain_with_engine("nccl", 30e-3)
    told = explain(domain, strategy_of(domain, AllReduce))
    assert told.startup_seconds == pytest.approx(0.175 - 0.135)


def test_a_dedicated_server_answers_before_the_training_script_steps() -> None:
    graph = chain_graph((MEGABYTE, MEGABYTE, (1_000_000,)))
    domain = domain_of(graph, cluster_of(3, servers=1, backend="nccl"), 40e-3)
    # Backward 240 ms. Of 4 MB the push takes 80 to 200 and the pull 200 to 320; the pulls of one
    # megabyte each follow it.
    dedicated = strategy_of(domain, lambda v: ParameterServer(3, v))
    assert period(domain, dedicated) == pytest.approx([0.380 + 0.120])


def test_a_rank_that_owns_values_sends_them_after_its_step() -> None:
    graph = chain_graph((MEGABYTE, MEGABYTE, (1_000_000,)))
    domain = domain_of(graph, cluster_of(4), 40e-3)
    # The same three senders into one link, but the first pull starts at 240 instead of 200.
    owned = strategy_of(domain, lambda v: ParameterServer(3, v))
    assert period(domain, owned) == pytest.approx([0.420 + 0.120])


def test_messages_to_several_dedicated_servers_are_in_flight_at_once() -> None:
    graph = chain_graph((MEGABYTE,) * 2)
    domain = domain_of(graph, cluster_of(3, servers=2, backend="nccl"), 0.0)
    both = strategy_of(domain, lambda v: ParameterServer(3 + v, v))
    # 3 MB into each server at once, then out of each.
    assert period(domain, both) == pytest.approx([0.060])
