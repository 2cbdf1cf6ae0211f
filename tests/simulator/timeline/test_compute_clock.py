"""Compute and messages that slow each other down, and what ranks compute for messages, by hand: at
100 MB/s a megabyte takes 15 ms in a ring of four ranks. With a slowdown of a half, compute does
10 ms of its work meanwhile.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.cluster import Backend, Cluster
from autosync.domain import Domain
from autosync.extensions.staleness.document import Staleness
from autosync.population import encode
from autosync.profiling import EFFICIENCY
from autosync.simulator.cost.compute_time import update_seconds_of_buckets
from autosync.simulator.explanation import explain
from autosync.simulator.limit import iteration_limit
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.iteration_trace import simulate_trace, union
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator, play_one
from autosync.strategy import AllGather, AllReduce, Factors, ParameterServer, Schedule, Strategy
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, period, random_strategy, strategy_of

MEGABYTE = (250_000,)
OVERLAP = Schedule(overlap_forward=True)


def slowed(domain: Domain, slowdown: float) -> Domain:
    return replace(domain, cluster=replace(domain.cluster, overlap_slowdown=slowdown))


def domain_with(operation_ms: float, *megabytes: int, backend: Backend = "nccl") -> Domain:
    """Each operation takes operation_ms forward and twice that backward; a slowdown of a half."""
    graph = chain_graph(tuple((250_000 * size,) for size in megabytes))
    return slowed(domain_of(graph, cluster_of(backend=backend), operation_ms * 1e-3), 0.5)


def test_a_message_within_backward_stretches_it() -> None:
    domain = domain_with(10.0, 1, 1, 1, 1)
    # One message from 20 to 35 ms, so backward ends at 85; then three megabytes, then forward.
    two = strategy_of(domain, lambda v: AllReduce(int(v == 3)))
    assert period(domain, two) == pytest.approx([0.085 + 0.045 + 0.040])
    # Each gradient but the first comes 5 ms later than the one before it did: 20, 45, 70, 95.
    each = strategy_of(domain, AllReduce)
    assert period(domain, each) == pytest.approx([0.095 + 0.015 + 0.040])


def test_a_message_goes_on_from_backward_into_forward() -> None:
    domain = domain_with(20.0, 1, 6, backend="gloo")
    # Alone from 40 ms on, when 40 ms of backward are left: they take 60. At 100 ms it has 30 of its
    # 90 ms left and shares the link with the other, which is whole at 130; it is so at 145, and the
    # other lands behind it. Forward waits until then and does its 40 ms until 185.
    assert period(domain, strategy_of(domain, AllReduce, OVERLAP)) == pytest.approx([0.185])
    # Where compute keeps its pace: backward until 80, the messages until 110 and 145, where both
    # land, and all of forward after that.
    plain = slowed(domain, 0.0)
    assert period(plain, strategy_of(plain, AllReduce, OVERLAP)) == pytest.approx([0.185])


@pytest.mark.parametrize(("backend", "assumed"), [("gloo", 0.1), ("nccl", 0.0)])
def test_where_nobody_has_told_the_slowdown_that_of_the_backend_is_played(
    backend: Backend, assumed: float
) -> None:
    stated = slowed(domain_with(10.0, 1, 1, 1, 1, backend=backend), assumed)
    domain = replace(stated, cluster=replace(stated.cluster, overlap_slowdown=None))
    # The first message is on the wire for 15 ms of backward; then three megabytes, then forward.
    one = strategy_of(domain, lambda v: AllReduce(int(v == 3)))
    beside = 0.015 / (1.0 + assumed)
    assert period(domain, one) == pytest.approx([0.120 + 0.015 - beside + 0.045])
    assert period(domain, one).tolist() == period(stated, one).tolist()
    assert explain(domain, one) == explain(stated, one)


def test_two_messages_at_once_count_once() -> None:
    domain = domain_with(10.0, 1, 1, 1, 3, backend="gloo")
    # 3 MB from 20 ms on; the next gradient comes at 50, and both arrive at 80, when backward has
    # done 60 of its 80 ms. The last two gradients go together, from 100 to 130.
    some = strategy_of(domain, lambda v: AllReduce(max(v, 1)))
    assert period(domain, some) == pytest.approx([0.130 + 0.040])


def test_owners_send_what_they_updated_after_the_stretched_step() -> None:
    graph = chain_graph((MEGABYTE, MEGABYTE, (1_000_000,)))
    domain = slowed(domain_of(graph, cluster_of(4), 40e-3), 0.5)
    owned = strategy_of(domain, lambda v: ParameterServer(3, v))
    # Three senders into one link: 4 MB from 80 to 200, when the next gradient comes, and 1 MB
    # until 230. The last 60 ms of backward are undisturbed. The values leave from 290 to 470.
    assert period(domain, owned) == pytest.approx([0.470 + 0.120])


def test_staleness_leaves_what_messages_take_from_compute() -> None:
    domain = domain_with(10.0, 1, 1, 1, 1)
    late = strategy_of(domain, lambda v: AllReduce(0)).carrying(Staleness(9))
    # 60 ms on the wire beside compute, which does 40 ms of its work meanwhile.
    assert period(domain, late) == pytest.approx([0.120 + 0.020])


def test_an_explanation_tells_compute_slowed_by_messages_apart() -> None:
    domain = domain_with(10.0, 1, 1, 1, 1)
    told = explain(domain, strategy_of(domain, AllReduce))
    assert told.compute_seconds == pytest.approx(0.120)
    assert told.transfer_seconds == pytest.approx(0.015)
    assert told.slowed_seconds == pytest.approx(0.015)
    assert told.step_seconds == pytest.approx(0.150)
    assert "compute slowed by messages 15.0 ms" in str(told)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_whatever_there_is_keeps_its_pace_or_loses_it(backend: Backend) -> None:
    """A slowdown too small to count takes the way of one that does, and changes nothing."""
    shapes = ((64, 32), (300, 7), (128, 64), (33,), (10, 128))
    cluster = cluster_of(2, 2, gbps=0.01, startup=1e-4, backend=backend, servers=1)
    domain = domain_of(chain_graph(shapes, (1,), factor_rows=4), cluster, 1e-3)
    domain = replace(domain, profile=replace(domain.profile, update_seconds=2e-3))
    rng = np.random.default_rng(8)
    population = encode([random_strategy(domain, rng) for _ in range(200)], domain)
    timeline = TimelineSimulator()
    free = timeline.predict(domain, population)
    same = timeline.predict(slowed(domain, 1e-300), population)
    np.testing.assert_allclose(same, free, rtol=1e-12)
    half = timeline.predict(slowed(domain, 0.5), population)
    assert (half <= free + 1.5 * domain.profile.compute_seconds).all()
    assert np.median(half) > np.median(free)


@given(
    st.lists(st.integers(1, 8), min_size=2, max_size=6),
    st.integers(1, 6),
    st.floats(1e-3, 30e-3),
    st.floats(0.0, 5e-3),
    st.booleans(),
    st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
)
def test_one_channel_loses_more_the_more_it_is_slowed(
    megabytes: list[int],
    groups: int,
    operation_seconds: float,
    startup: float,
    overlap: bool,
    slowdowns: tuple[float, float],
) -> None:
    """At most what all of compute would. (Where messages share links or overtake each other, a
    later one can leave an earlier one more of a link, as in any schedule.)"""
    graph = chain_graph(tuple((250_000 * size,) for size in megabytes))
    cluster = cluster_of(backend="nccl", startup=startup)
    domain = domain_of(graph, cluster, operation_seconds)
    schedule = Schedule(overlap_forward=overlap)
    strategy = strategy_of(domain, lambda v: AllReduce(v % groups), schedule)
    less, more = sorted(slowdowns)
    free, some, most = (period(slowed(domain, s), strategy)[0] for s in (0.0, less, more))
    assert free <= some * (1 + 1e-12)
    assert some <= most * (1 + 1e-12)
    assert most <= (free + more * domain.profile.compute_seconds) * (1 + 1e-12)


def test_the_union_of_intervals() -> None:
    starts, stops = np.array([5.0, 0.0, 1.0, 3.0, 8.0]), np.array([6.0, 2.0, 1.5, 5.0, 9.0])
    assert union(starts, stops).tolist() == [[0.0, 2.0], [3.0, 6.0], [8.0, 9.0]]
    assert len(union(np.array([]), np.array([]))) == 0


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


ROWS, SIDE = 10, 1000
CPU_FLOPS_PER_SECOND = 1e11 * EFFICIENCY
"""What `devices` states of a CPU, of which products reach a share."""
REBUILT = 2 * 4 * ROWS * SIDE * SIDE / CPU_FLOPS_PER_SECOND
"""Seconds in which the factors of four ranks are multiplied."""


def layers(
    cluster: Cluster, count: int, operation_seconds: float = 1e-6, forward_flops: int = 1
) -> Domain:
    """Linear layers of SIDE x SIDE, ROWS factors each: 80 KB from every rank to every other one."""
    graph = chain_graph(((SIDE, SIDE),) * count, factor_rows=ROWS)
    slow = tuple(replace(each, forward_flops=forward_flops) for each in graph.operations)
    return domain_of(replace(graph, operations=slow), cluster, operation_seconds)


@pytest.mark.parametrize(
    ("forward_flops", "rebuilt"),
    [
        (1, REBUILT),  # the product's FLOPs are 8e7
        (10**6, 80e-6),  # the profile's rate is higher: 1e6 FLOPs in a microsecond
        (0, 0.0),  # it is not known
    ],
)
def test_a_gradient_of_factors_is_there_when_all_ranks_products_are_added_up(
    forward_flops: int, rebuilt: float
) -> None:
    domain = layers(cluster_of(), 1, forward_flops=forward_flops)
    # Three sends of 80 KB at 100 MB/s, then the product.
    assert period(domain, strategy_of(domain, Factors)) == pytest.approx([3e-6 + 2.4e-3 + rebuilt])


def test_a_channel_rebuilds_one_message_at_a_time() -> None:
    domain = layers(cluster_of(gbps=8.0), 2)
    # Issued at 2 and 4 us, the two share their links until 0.48 ms; then one product follows the
    # other, and two forward operations of a microsecond.
    sent = period(domain, strategy_of(domain, Factors))
    assert sent == pytest.approx([0.48e-3 + 2 * REBUILT + 2e-6])


@pytest.mark.parametrize("slowdown", [0.0, 0.25])
def test_the_trace_of_the_slowest_rank_lasts_the_period(slowdown: float) -> None:
    cluster = replace(cluster_of(), overlap_slowdown=slowdown)
    domain = layers(cluster, 3, 1e-3)
    strategy = strategy_of(domain, Factors, Schedule(overlap_forward=True))
    population = encode([strategy], domain)
    trace = simulate_trace(compile_plans_fast(population, domain), population, domain)
    seconds = period(domain, strategy)[0]
    assert max(each.stop_seconds for each in trace.compute) == pytest.approx(2 * seconds)
    assert seconds >= iteration_limit(domain).seconds


def updates(strategy: Strategy, domain: Domain) -> list[float]:
    """Seconds of the update of each bucket."""
    plans = compile_plans_fast(encode([strategy], domain), domain)
    return [float(seconds) for seconds in update_seconds_of_buckets(plans, domain)]


def test_an_update_is_of_the_touched_rows() -> None:
    graph = chain_graph(((1000, 8), (16,)), sparse=(0,))
    domain = domain_of(graph, cluster_of(), 1e-3)
    domain = replace(domain, profile=replace(domain.profile, update_seconds=8e-3))
    # Two rows of 8 elements and a vector of 16: a quarter of a millisecond an element.
    strategy = strategy_of(domain, lambda v: AllReduce(1) if v else AllGather(0))
    assert sorted(updates(strategy, domain)) == pytest.approx([4e-3, 4e-3])
    # So the owner of a table does.
    owned = strategy_of(domain, lambda v: ParameterServer(0, v))
    assert sum(updates(owned, domain)) == pytest.approx(8e-3)
    still = replace(domain, profile=replace(domain.profile, update_seconds=0.0))
    assert period(domain, strategy) - period(still, strategy) == pytest.approx([8e-3])


def test_compute_feels_a_message_of_nccl_while_it_starts_up() -> None:
    """Four messages of next to no bytes, whose startups fill the 30 ms of backward."""

    def seconds(backend: Backend, slowdown: float) -> float:
        cluster = cluster_of(gbps=1000.0, startup=8e-3, backend=backend)
        cluster = replace(cluster, overlap_slowdown=slowdown)
        domain = domain_of(chain_graph(((16,),) * 4), cluster, 1e-2)
        return float(period(domain, strategy_of(domain, AllReduce))[0])

    assert seconds("nccl", 0.5) > seconds("nccl", 0.0) + 2e-3
    assert seconds("gloo", 0.5) == pytest.approx(seconds("gloo", 0.0), rel=1e-3)
