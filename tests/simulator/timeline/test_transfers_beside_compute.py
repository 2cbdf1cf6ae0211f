"""Transfers through devices' ports take longer while devices run backward."""

from dataclasses import replace

import pytest

from autosync.population import encode
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import play_one
from autosync.strategy import AllReduce
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, strategy_of

SIZES = ((250_000,), (1_000_000,))
"""Gradients of 1 MB and 4 MB; the large one is ready first, after 2 ms of 4."""


def arrivals(
    transfer_slowdown: float, gbps: float, intra_gbps: float, together: bool = False
) -> list[float]:
    cluster = cluster_of(2, 1, gbps=gbps, intra_gbps=intra_gbps, backend="nccl")
    cluster = replace(cluster, transfer_slowdown=transfer_slowdown)
    domain = domain_of(chain_graph(SIZES), cluster, 1e-3)
    strategy = strategy_of(domain, lambda v: AllReduce(0 if together else v))
    population = encode([strategy], domain)
    plans = compile_plans_fast(population, domain)
    return [float(seconds) for seconds in play_one(plans, population, domain, 0).arrived]


def test_what_the_port_holds_back_takes_longer_until_backward_ends() -> None:
    # 4 MB through ports of 8 Gbit/s take 4 ms: from 2 to 6 ms, or at half speed until 4 ms
    assert arrivals(0.0, 80.0, 8.0) == pytest.approx([6e-3, 7e-3])
    assert arrivals(1.0, 80.0, 8.0) == pytest.approx([7e-3, 8e-3])


def test_what_a_slower_link_holds_back_is_not_delayed() -> None:
    free = arrivals(0.0, 8.0, 80.0)
    assert arrivals(1.0, 8.0, 80.0) == pytest.approx(free)
    assert arrivals(19.0, 8.0, 80.0) == pytest.approx([7e-3, 8e-3])


def test_what_is_sent_after_backward_is_not_delayed() -> None:
    assert arrivals(0.0, 80.0, 8.0, together=True) == pytest.approx([9e-3])
    assert arrivals(3.0, 80.0, 8.0, together=True) == pytest.approx([9e-3])
