"""What several messages do to each other on their links, worked out by hand: a megabyte takes 10 ms
on a link, and nothing is computed."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.cluster import Cluster
from autosync.codes import Op
from autosync.domain import Domain
from autosync.population import encode
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import play_one
from autosync.strategy import AllReduce, ParameterServer, ReduceScatter, Strategy, Synchronizer
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, period, strategy_of

MEGABYTE = (250_000,)
SMALL = (250,)


def arrivals(domain: Domain, strategy: Strategy, operation: Op) -> NDArray[np.float64]:
    """Seconds until the messages of an operation have arrived, in issue order."""
    population = encode([strategy], domain)
    plans = compile_plans_fast(population, domain)
    arrived: NDArray[np.float64] = play_one(plans, population, domain, 0).arrived[
        plans.operation == operation
    ]
    return arrived


def domain_with(shapes: tuple[tuple[int, ...], ...], cluster: Cluster) -> Domain:
    return domain_of(chain_graph(shapes), cluster, 0.0)


def test_connections_share_a_link_and_a_message_has_as_many_as_it_has_pairs_of_ranks() -> None:
    domain = domain_with((MEGABYTE,) * 2, cluster_of(4))

    def choose(variable: int) -> Synchronizer:
        return ParameterServer(0, 1) if variable else AllReduce(0)

    both = strategy_of(domain, choose)
    # Into rank 0 flow three connections of the push (30 ms alone) and one of the ring (15 alone):
    # the push takes 4/3 of its time. The ring has 10 of its 15 ms behind it then, and goes on at a
    # quarter beside the pull, of which 15 of 30 ms are left when the ring ends.
    assert arrivals(domain, both, Op.PUSH) == pytest.approx([0.040])
    assert arrivals(domain, both, Op.ALL_REDUCE) == pytest.approx([0.060])
    assert arrivals(domain, both, Op.PULL) == pytest.approx([0.075])


def test_two_rings_of_a_channel_take_turns_in_proportion_to_their_bytes() -> None:
    def rings(cluster: Cluster) -> NDArray[np.float64]:
        domain = domain_with((MEGABYTE, MEGABYTE, (1_000_000,)), cluster)
        return arrivals(domain, strategy_of(domain, AllReduce), Op.ALL_REDUCE)

    # 4 MB (60 ms alone) and 1 MB (15 ms) begin at once: four of five bytes are the large one's, and
    # both end after 75 ms. Shared alike, the large one would have let both small ones pass.
    assert rings(cluster_of(4)) == pytest.approx([0.075, 0.075, 0.090])
    assert rings(cluster_of(4, backend="nccl")) == pytest.approx([0.060, 0.075, 0.090])


def test_a_rings_latencies_lie_between_its_bytes() -> None:
    def ring_beside_push(startup: float) -> float:
        domain = domain_with((MEGABYTE,) * 2, cluster_of(2, startup=startup))
        both = strategy_of(domain, lambda v: ParameterServer(0, 1) if v else AllReduce(0))
        return float(arrivals(domain, both, Op.ALL_REDUCE)[0])

    # A ring of 10 ms that takes as long for its steps asks for half of its link. The push starts up
    # for 10 ms meanwhile, and then both would have more than there is: each gets half.
    assert ring_beside_push(0.010) == pytest.approx(0.020)
    assert ring_beside_push(0.0) == pytest.approx(0.020)


def test_a_ring_that_mostly_waits_takes_next_to_nothing_from_others() -> None:
    domain = domain_with((MEGABYTE,) * 2, cluster_of(2, startup=0.190))
    both = strategy_of(domain, lambda v: ParameterServer(0, 1) if v else AllReduce(0))
    # The ring asks for a twentieth of its link and counts as a tenth of a connection: the push has
    # 1 / 1.1 of it for 10 ms, then all.
    assert arrivals(domain, both, Op.ALL_REDUCE) == pytest.approx([0.200])
    assert arrivals(domain, both, Op.PUSH) == pytest.approx([0.200 + 0.010 - 0.010 / 1.1])


def test_compute_does_not_feel_the_latencies_of_a_ring() -> None:
    def backward(slowdown: float) -> float:
        cluster = replace(cluster_of(4, startup=0.015), overlap_slowdown=slowdown)
        domain = domain_of(chain_graph((MEGABYTE,) * 2), cluster, 0.010)
        return float(period(domain, strategy_of(domain, AllReduce))[0])

    # The first gradient is there when 20 of backward's 40 ms are done. Its ring has 15 ms of
    # latencies and 15 of bytes: of the other 20 ms of backward only the last 5 are slowed.
    assert backward(0.5) - backward(0.0) == pytest.approx(0.0025)


def test_on_gloo_a_message_lands_after_those_before_it_on_its_channel() -> None:
    def pushes(cluster: Cluster) -> NDArray[np.float64]:
        domain = domain_with((SMALL, MEGABYTE), cluster)
        return arrivals(domain, strategy_of(domain, lambda v: ParameterServer(3 + v, v)), Op.PUSH)

    # To dedicated servers: 3 MB into the one, and a few KB into the other, which came second.
    large, small = pushes(cluster_of(3, servers=2))
    assert small == large == pytest.approx(0.030, rel=0.01)
    large, small = pushes(cluster_of(3, servers=2, backend="nccl"))
    assert small < 0.001 < large


def test_what_each_send_holds_its_links_for_hides_behind_no_other_message() -> None:
    cluster = cluster_of(4)
    domain = domain_with((MEGABYTE,) * 2, cluster)
    each, halves = strategy_of(domain, AllReduce), strategy_of(domain, ReduceScatter)
    sending = replace(domain, cluster=replace(cluster, link_seconds_per_send=1e-3))
    # Two rings of 2 (4 - 1) sends over every link; a reduce-scatter and an all-gather send once to
    # each of three others.
    assert period(sending, each) - period(domain, each) == pytest.approx([2 * 0.006])
    assert period(sending, halves) - period(domain, halves) == pytest.approx([2 * 2 * 0.003])
