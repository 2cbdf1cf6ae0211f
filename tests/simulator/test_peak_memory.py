"""Memory by hand."""

from dataclasses import replace

import pytest

from autosync.cluster import Device
from autosync.domain import Domain, Optimizer
from autosync.plan import PlanTable
from autosync.population import Population, encode
from autosync.simulator.explanation import explain
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.peak_memory import (
    activation_bytes,
    device_memory_bytes,
    peak_bytes,
    state_bytes,
)
from autosync.strategy import AllReduce, ParameterServer, ReduceScatter, Strategy
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, strategy_of

MEGABYTE = (250_000,)


def planned(domain: Domain, strategy: Strategy) -> tuple[PlanTable, Population, Domain]:
    population = encode([strategy], domain)
    return compile_plans_fast(population, domain), population, domain


def four() -> Domain:
    graph = chain_graph((MEGABYTE,) * 4)
    return domain_of(graph, cluster_of(), optimizer=Optimizer("adamw", True, 2))


def test_activations_of_a_chain_peak_as_backward_begins() -> None:
    # Four outputs of 4 KiB, and the gradients of the last and, from its backward on, its input.
    assert activation_bytes(chain_graph((MEGABYTE,) * 4)) == (0.0, 6 * 4096.0)


def test_optimizer_state_lies_where_the_update_runs() -> None:
    domain = four()
    everyone = planned(domain, strategy_of(domain, AllReduce))
    shards = planned(domain, strategy_of(domain, lambda v: ReduceScatter(0, True)))
    owner = planned(domain, strategy_of(domain, lambda v: ParameterServer(1, 0)))
    assert state_bytes(everyone[0], domain, 0) == pytest.approx([8e6] * 4)
    assert state_bytes(shards[0], domain, 0) == pytest.approx([2e6] * 4)
    assert state_bytes(owner[0], domain, 0) == pytest.approx([0.0, 8e6, 0.0, 0.0])


def test_the_peak_adds_up_and_a_server_holds_what_it_receives() -> None:
    domain = four()
    everyone = peak_bytes(*planned(domain, strategy_of(domain, lambda v: AllReduce(0))))
    # Parameters, gradients, a bucket, two states, activations.
    assert everyone == pytest.approx([4e6 * 5 + 6 * 4096] * 4)
    owner = peak_bytes(*planned(domain, strategy_of(domain, lambda v: ParameterServer(1, 0))))
    assert owner - owner.min() == pytest.approx([0.0, 8e6 + 3 * 4e6, 0.0, 0.0])


def test_ranks_whose_device_has_less_memory_are_named() -> None:
    domain = four()
    nodes = tuple(
        replace(node, devices=(Device("cpu", memory_gb=1.0 if i else 0.001),))
        for i, node in enumerate(domain.cluster.nodes)
    )
    domain = replace(domain, cluster=replace(domain.cluster, nodes=nodes))
    assert device_memory_bytes(domain) == pytest.approx([1e6, 1e9, 1e9, 1e9])
    assert explain(domain, strategy_of(domain, AllReduce)).ranks_out_of_memory == (0,)
