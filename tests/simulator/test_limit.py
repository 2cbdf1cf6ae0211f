"""The limit by hand, against brute force, and below every simulated strategy; and the schedule of
one machine that it is made of."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from autosync.allowed import Allowed
from autosync.cluster import Cluster, Link
from autosync.domain import Domain
from autosync.extensions.staleness.document import Staleness
from autosync.simulator.limit import iteration_limit, least_transfer
from autosync.simulator.preemptive_schedule import (
    Run,
    least_end,
    longest_tail_first,
    preemptive_runs,
)
from autosync.strategy import AllReduce, Encoding, ParameterServer
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, period, random_strategy, strategy_of

SHAPES = ((64, 32), (300, 7), (128, 64), (33,), (10, 128))


@pytest.mark.parametrize(
    "cluster",
    [
        cluster_of(4, gbps=0.008),
        cluster_of(2, 2, gbps=0.008),
        cluster_of(4, gbps=(0.008, 0.004, 0.008, 0.016), slowdowns=(1.0, 1.0, 1.0, 2.5)),
        cluster_of(3, gbps=0.008, servers=2),
        cluster_of(4, gbps=0.008, backend="nccl", slowdowns=(1.0, 3.0, 1.0, 1.0)),
        replace(cluster_of(3, gbps=0.008), links=(Link(("10.0.0.0", "10.0.0.1"), 0.002),)),
        replace(cluster_of(4, gbps=0.008), overlap_slowdown=0.4),
    ],
)
@pytest.mark.parametrize("operation_seconds", [1e-4, 2e-3, 1e-2])
def test_no_simulated_strategy_lies_below_the_limit(
    cluster: Cluster, operation_seconds: float
) -> None:
    domain = domain_of(chain_graph(SHAPES, (1,), factor_rows=4), cluster, operation_seconds)
    rng = np.random.default_rng(5)
    seconds = period(domain, *(random_strategy(domain, rng) for _ in range(300)))
    bound = iteration_limit(domain)
    assert seconds.min() >= bound.seconds * (1 - 1e-9)
    assert bound.seconds >= max(bound.compute_seconds, bound.transfer_seconds)
    # It is no empty promise: some strategy of 300 random ones comes near it.
    assert seconds.min() <= (5.0 if cluster.links else 2.0) * bound.seconds


def even(gbps: float, operation_seconds: float, slowdowns: tuple[float, ...] = ()) -> Domain:
    graph = chain_graph(((250_000,),) * 4)
    return domain_of(graph, cluster_of(gbps=gbps, slowdowns=slowdowns), operation_seconds)


def test_equal_nodes_need_a_rings_bytes() -> None:
    bound = iteration_limit(even(0.8, 1e-3))
    assert bound.transfer_seconds == pytest.approx(1.5 * 4e6 / 1e8)
    # Ready back to front every 2 ms; all 60 ms are sent from 2 ms on, then one operation's tail.
    assert bound.schedule_seconds == pytest.approx(2e-3 + 60e-3 + 1e-3)
    assert bound.tightest == "schedule"
    blocked = iteration_limit(even(0.8, 1e-3), Allowed(overlap_forward=False))
    assert blocked.schedule_seconds == pytest.approx(2e-3 + 60e-3 + 4e-3)


def test_servers_on_fast_nodes_need_less_than_a_ring_through_slow_ones() -> None:
    domain = domain_of(chain_graph(((250_000,),) * 4), cluster_of(gbps=(1.6, 1.6, 0.8, 0.8)), 0.0)
    ring = iteration_limit(domain, Allowed(parameter_server=False, hierarchical=False))
    assert ring.transfer_seconds == pytest.approx(1.5 * 4e6 / 1e8)
    # A slow node carries each byte once either way, when none is owned there.
    assert iteration_limit(domain).transfer_seconds == pytest.approx(4e6 / 1e8)


def test_fewer_bytes_lower_the_limit() -> None:
    graph = chain_graph(((1000, 1000),), factor_rows=8)
    domain = domain_of(graph, cluster_of(), 0.0)
    dense = iteration_limit(domain, Allowed(factors=False)).transfer_seconds
    assert dense == pytest.approx(1.5 * 4e6 / 1e8)
    assert iteration_limit(domain).transfer_seconds == pytest.approx(3 * 8 * 2000 * 4 / 1e8)
    half = iteration_limit(domain, Allowed(factors=False, encodings=(Encoding("bf16"),)))
    assert half.transfer_seconds == pytest.approx(dense / 2)


def test_owners_return_packed_gradients_in_fewer_bytes_than_values() -> None:
    domain = domain_of(chain_graph(((250_000,),) * 4), cluster_of(gbps=(1.6, 1.6, 0.8, 0.8)), 0.0)
    packed = Encoding("bf16")
    bound = iteration_limit(domain, Allowed(encodings=(packed,)))
    # A slow node sends and receives half of 4 MB: a ring would carry three quarters either way.
    assert bound.transfer_seconds == pytest.approx(2e6 / 1e8)
    owned = strategy_of(
        domain, lambda v: ParameterServer(v % 2, v, encoding=packed, returns_gradients=True)
    )
    assert period(domain, owned)[0] >= bound.seconds * (1 - 1e-9)


def test_what_passes_a_link_between_two_nodes_does_not_cross_the_spine() -> None:
    link = Link(("10.0.0.0", "10.0.0.1"), 8.0)
    cluster = replace(cluster_of(2, gbps=0.8), links=(link,), oversubscription=2.0)
    domain = domain_of(chain_graph(((250_000,),) * 4), cluster, 0.0)
    (seconds,) = period(domain, strategy_of(domain, lambda v: AllReduce(0)))
    assert seconds == pytest.approx(4e6 / 1e9)
    assert iteration_limit(domain).seconds <= seconds


def test_uneven_shares_lower_what_devices_must_compute() -> None:
    domain = even(800.0, 1e-2, slowdowns=(1.0, 1.0, 2.0, 2.0))
    assert iteration_limit(domain).compute_seconds == pytest.approx(0.24)
    dealt = iteration_limit(domain, Allowed(uneven_shares=True))
    assert dealt.compute_seconds == pytest.approx(0.12 * 4 / 3)


def test_stale_strategies_are_bound_by_compute_and_bytes_alone() -> None:
    domain = even(0.8, 1e-3)
    late = Allowed(staleness=(0, 4))
    bound = iteration_limit(domain, late)
    assert bound.schedule_seconds == 0.0
    assert bound.seconds == max(bound.compute_seconds, bound.transfer_seconds)
    assert bound.seconds < iteration_limit(domain).seconds
    strategies = [strategy_of(domain, way).carrying(Staleness(4)) for way in (AllReduce, one_owner)]
    predicted = period(domain, *strategies)
    assert (predicted >= bound.seconds * (1 - 1e-9)).all()


def one_owner(variable: int) -> ParameterServer:
    return ParameterServer(variable % 4, variable)


def test_links_far_faster_than_the_model_is_large_have_a_limit() -> None:
    graph = chain_graph(((16, 4),) * 2)
    slow = least_transfer(domain_of(graph, cluster_of(2, gbps=1.0), 1e-3), Allowed())
    fast = least_transfer(domain_of(graph, cluster_of(2, gbps=1e6), 1e-3), Allowed())
    assert (fast > 0).all()
    assert (fast < slow).all()


def test_with_placement_compute_alone_is_a_limit() -> None:
    """Any rank may take any part of it, and no gradient need travel."""
    domain = even(0.008, 1e-3, (1.0, 1.0, 1.0, 3.0))
    bound = iteration_limit(domain, Allowed(placement=True))
    assert bound.seconds == bound.compute_seconds
    assert bound.transfer_seconds == bound.schedule_seconds == 0.0
    assert bound.compute_seconds == pytest.approx(
        iteration_limit(domain, Allowed(uneven_shares=True)).compute_seconds
    )
    assert bound.seconds < iteration_limit(domain).seconds


def best_by_force(ready: list[int], needs: list[int], tails: list[int]) -> int:
    """Unit time slots, every order of slots: the machine never idles while a job is ready."""
    slots = [job for job, need in enumerate(needs) for _ in range(need)]
    best = 10**9
    for order in set(permutations(slots)):
        now, end = 0, 0
        for job in order:
            now = max(now, ready[job]) + 1
            end = max(end, now + tails[job])
        best = min(best, end)
    return best


def test_the_longest_tail_first_is_the_best_interruptible_schedule() -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        ready, tails = rng.integers(0, 7, 3), rng.integers(0, 9, 3)
        needs = rng.integers(1, 4, 3)
        exact = longest_tail_first(*(array.astype(float) for array in (ready, needs, tails)))
        assert exact == best_by_force(ready.tolist(), needs.tolist(), tails.tolist())


@pytest.mark.parametrize("least_seconds", [0.0, 2.0])
def test_runs_serve_every_job_whole_and_one_at_a_time(least_seconds: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        ready, needs, tails = (rng.integers(1, 30, 12).astype(float) for _ in range(3))
        runs = preemptive_runs(ready, needs, tails, least_seconds)
        served = np.zeros(12)
        for run, after in zip(runs, [*runs[1:], None], strict=True):
            assert run.begin_seconds >= ready[run.job]
            served[run.job] += run.end_seconds - run.begin_seconds
            assert run.end_seconds - run.begin_seconds >= min(least_seconds, needs[run.job])
            assert after is None or after.begin_seconds >= run.end_seconds
            assert after is None or after.job != run.job or after.begin_seconds > run.end_seconds
        np.testing.assert_allclose(served, needs)


def test_an_urgent_job_interrupts_unless_the_run_would_be_too_short() -> None:
    ready, needs, tails = np.array([0.0, 3.0]), np.array([10.0, 2.0]), np.array([0.0, 9.0])
    assert preemptive_runs(ready, needs, tails) == [Run(0, 0, 3), Run(1, 3, 5), Run(0, 5, 12)]
    waited = [Run(0, 0, 4), Run(1, 4, 6), Run(0, 6, 12)]
    assert preemptive_runs(ready, needs, tails, 4.0) == waited
    assert preemptive_runs(ready, needs, tails, 8.0) == [Run(0, 0, 10), Run(1, 10, 12)]


def test_no_jobs_end_at_once() -> None:
    nothing = np.empty(0)
    assert longest_tail_first(nothing, nothing, nothing) == 0.0


def test_no_schedule_ends_before_the_least_end() -> None:
    rng = np.random.default_rng(5)
    for jobs in (1, 2, 5, 40):
        for _ in range(30):
            ready, needs, tails = rng.random((3, jobs))
            end = longest_tail_first(ready, needs, tails)
            assert 0.3 * end < least_end(ready, needs, tails) <= end
    assert least_end(*np.ones((3, 1))) == pytest.approx(3.0)
