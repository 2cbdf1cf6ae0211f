"""Iterations worked out by hand: at 100 MB/s a megabyte takes 10 ms on a link, and 15 ms in a ring
of four ranks, which carries 1.5 times the bytes."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Backend, Cluster, MessageCost
from autosync.domain import Domain
from autosync.extensions.staleness.document import Staleness, late_by
from autosync.simulator.explanation import explain
from autosync.strategy import AllReduce, ParameterServer, ReduceScatter, Replica, Schedule
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, period, random_strategy, strategy_of

MEGABYTE = (250_000,)
OVERLAP = Schedule(overlap_forward=True)


def domain_with(operation_ms: float, cluster: Cluster | None = None, variables: int = 4) -> Domain:
    """Each operation takes operation_ms forward and twice that backward. By default on NCCL, which
    runs one message at a time, in the order of the plan."""
    graph = chain_graph((MEGABYTE,) * variables)
    return domain_of(graph, cluster or cluster_of(backend="nccl"), operation_ms * 1e-3)


def test_one_bucket_follows_the_whole_backward() -> None:
    domain = domain_with(10.0, cluster_of(startup=5e-3, backend="nccl"))
    # 40 ms forward, 80 ms backward, then 4 MB * 3/2 at 100 MB/s and one startup.
    assert period(domain, strategy_of(domain, lambda v: AllReduce(0))) == pytest.approx(
        [0.120 + 0.060 + 0.005]
    )


def test_messages_in_backward_hide_all_but_the_tail() -> None:
    domain = domain_with(10.0)
    # Each gradient takes 20 ms to compute and 15 ms to send: only the last one is seen.
    assert period(domain, strategy_of(domain, AllReduce)) == pytest.approx([0.120 + 0.015])
    slower = domain_with(5.0)
    # Computed every 10 ms, sent in 15: the wire is busy from 10 ms on for 60.
    assert period(slower, strategy_of(slower, AllReduce)) == pytest.approx([0.020 + 0.010 + 0.060])


def test_ideal_ddp_takes_a_third_plus_the_larger_of_two_thirds_and_rho() -> None:
    """Equation 8 of DeAR with backward twice as long as forward."""
    variables = 400
    for rho in (0.5, 1.0, 2.0):
        graph = chain_graph(((2500,),) * variables)
        compute = 4e6 * 1.5 / 1e8 / rho
        domain = domain_of(graph, cluster_of(backend="nccl"), compute / 3 / variables)
        ratio = period(domain, strategy_of(domain, AllReduce))[0] / compute
        assert ratio == pytest.approx(1 / 3 + max(2 / 3, rho), rel=0.005)


def test_overlap_into_forward_waits_at_each_gate() -> None:
    domain = domain_with(5.0)
    fifo = strategy_of(domain, AllReduce, OVERLAP)
    # Sent 3, 2, 1, 0: variable 0 arrives last, at 70 ms, and forward starts with it.
    assert period(domain, fifo) == pytest.approx([0.070 + 0.020])
    first = strategy_of(domain, AllReduce, Schedule("explicit", 0, True, (0, 1, 2, 3)))
    # 0 goes first, at 40 ms; forward reaches each gate as its message arrives: the last at 100.
    assert period(domain, first) == pytest.approx([0.100 + 0.005])


def test_an_all_gather_waits_for_step_only_if_shards_update() -> None:
    domain = domain_with(10.0, variables=1)
    gradient = strategy_of(domain, lambda v: ReduceScatter(0), OVERLAP)
    values = strategy_of(domain, lambda v: ReduceScatter(0, sharded_update=True), OVERLAP)
    # One variable: backward 20, two halves of 7.5 each, forward 10.
    assert period(domain, gradient, values) == pytest.approx([0.045, 0.045])
    domain = domain_with(10.0)
    values = strategy_of(domain, lambda v: ReduceScatter(v, sharded_update=True), OVERLAP)
    # step() at 80; the last half-reduction, of variable 0, ends at 87.5. Behind it come its values,
    # until 95, and the others before forward reaches them.
    assert period(domain, values) == pytest.approx([0.095 + 0.040])


def test_a_rank_on_nccl_runs_no_two_messages_at_once() -> None:
    domain = domain_with(0.0, cluster_of(startup=5e-3, backend="nccl"), variables=2)
    # Over four hosts of one rank a chain carries a megabyte in 10 ms. Each variable is reduced and
    # sent back, and only then the next one is reduced: no startup hides behind other bytes.
    tree = strategy_of(domain, lambda v: AllReduce(v, "tree"))
    assert period(domain, tree) == pytest.approx([4 * 0.015])


def test_a_rank_that_owns_on_nccl_is_sent_to_by_a_reduce() -> None:
    domain = domain_with(10.0)
    # Whoever owns, 4 MB pass each link once to the owner and once back.
    one = strategy_of(domain, lambda v: ParameterServer(0, 0))
    spread = strategy_of(domain, lambda v: ParameterServer(v, v))
    assert period(domain, one) == pytest.approx([0.120 + 2 * 0.040])
    # Reduced in backward (the last one until 90), the values sent after it.
    assert period(domain, spread) == pytest.approx([0.120 + 0.010 + 0.040])


def test_everyone_meets_at_the_server() -> None:
    domain = domain_with(10.0, cluster_of())
    one = strategy_of(domain, lambda v: ParameterServer(0, 0))
    # Three pushes of 4 MB into one link, then three pulls out of it.
    assert period(domain, one) == pytest.approx([0.120 + 2 * 0.120])
    spread = strategy_of(domain, lambda v: ParameterServer(v, v))
    # Over four servers pushes begin in backward; the last one and its pull (30 each) end it.
    assert 0.120 + 0.060 <= period(domain, spread)[0] < 0.120 + 0.150


def test_pushes_to_different_servers_share_the_senders_links() -> None:
    graph = chain_graph((MEGABYTE,) * 2)
    domain = domain_of(graph, cluster_of(3, servers=2), 0.0)
    both = strategy_of(domain, lambda v: ParameterServer(3 + v, v))
    # Dedicated servers: 3 MB into each at once; a sender's 2 MB fit beside.
    assert period(domain, both) == pytest.approx([0.060])
    nccl = domain_of(graph, cluster_of(3, servers=2, backend="nccl"), 0.0)
    assert period(nccl, both) == pytest.approx([0.060])
    one = strategy_of(domain, lambda v: ParameterServer(3, v))
    # One server's second push (30 to 60) runs beside its first pull: links go both ways at once.
    assert period(domain, one) == pytest.approx([0.090])


def test_a_busy_server_does_not_hold_up_another() -> None:
    graph = chain_graph((MEGABYTE,) * 9)
    domain = domain_of(graph, cluster_of(3, servers=2), 0.0)
    # Eight pushes for server 3 are posted before the only one for server 4, which goes beside.
    uneven = strategy_of(domain, lambda v: ParameterServer(3 + (v == 0), v))
    # Server 3: pushes 240 ms, the first pull at 30 ms, the last one from 240 to 270.
    assert period(domain, uneven) == pytest.approx([0.270])


def test_two_at_once_on_gloo_hide_each_others_startup() -> None:
    gloo = domain_with(0.0, cluster_of(startup=5e-3))
    nccl = domain_with(0.0, cluster_of(startup=5e-3, backend="nccl"))
    each = strategy_of(gloo, AllReduce)
    assert period(nccl, each) == pytest.approx([4 * 0.020])
    # Two start together: the latencies of one's steps hide behind the other's bytes, so that their
    # link is never idle; then the next two.
    assert period(gloo, each) == pytest.approx([2 * 0.030])


def test_the_slowest_rank_and_the_slowest_link_set_the_pace() -> None:
    slow = (1.0, 1.0, 2.0, 1.0)
    cluster = cluster_of(slowdowns=slow, gbps=(0.8, 0.8, 0.8, 0.4), backend="nccl")
    domain = domain_with(10.0, cluster)
    assert period(domain, strategy_of(domain, lambda v: AllReduce(0))) == pytest.approx(
        [0.240 + 0.120]
    )


def test_uneven_shares_even_out_slow_devices() -> None:
    domain = domain_with(10.0, cluster_of(slowdowns=(1.0, 1.0, 2.0, 1.0), backend="nccl"))
    even = strategy_of(domain, lambda v: AllReduce(0))
    shares = (2 / 7, 2 / 7, 1 / 7, 2 / 7)
    dealt = replace(even, replicas=tuple(map(Replica, range(4), shares)))
    assert period(domain, even, dealt) == pytest.approx([0.240 + 0.060, 0.120 * 8 / 7 + 0.060])


def updating(domain: Domain) -> Domain:
    """Whose update of all takes 8 ms."""
    return replace(domain, profile=replace(domain.profile, update_seconds=0.008))


def test_updates_take_time_where_they_happen() -> None:
    domain = updating(domain_with(10.0))
    everyone = strategy_of(domain, lambda v: AllReduce(0))
    shards = strategy_of(domain, lambda v: ReduceScatter(0, sharded_update=True))
    owner = strategy_of(domain, lambda v: ParameterServer(0, 0))
    assert period(domain, everyone, shards, owner) == pytest.approx(
        [0.180 + 0.008, 0.180 + 0.002, 0.200 + 0.008]
    )


def test_on_nccl_values_are_updated_beside_the_messages_before_them() -> None:
    domain = updating(domain_with(10.0))
    owners = strategy_of(domain, lambda v: ParameterServer(v, v))
    shards = strategy_of(domain, lambda v: ReduceScatter(v, sharded_update=True))
    # The last gradient is there at 80 and reduced until 90 (scattered: 87.5). The values of three
    # variables are updated by then, those of the fourth while theirs are sent.
    assert period(domain, owners, shards) == pytest.approx([0.090 + 0.080, 0.0875 + 0.070])


def test_clocks_answer_while_the_next_iterations_compute() -> None:
    """Pushes of 120 ms to one owner, then answers of 120: after the step, in one iteration or in
    more, but no fewer seconds an iteration than the link is busy, or than compute takes."""
    domain, computing = domain_with(5.0, cluster_of()), domain_with(50.0, cluster_of())
    prompt = strategy_of(domain, lambda v: ParameterServer(0, 0))
    late = [prompt.carrying(*late_by(s)) for s in (1, 2, 4)]
    assert period(domain, prompt, *late) == pytest.approx([0.300, 0.240, 0.120, 0.120])
    assert period(computing, *late) == pytest.approx([0.600] * 3)


def test_replicas_update_however_late_their_gradients_are() -> None:
    domain = updating(domain_with(10.0, cluster_of()))
    late = strategy_of(domain, lambda v: ParameterServer(0, 0)).carrying(Staleness(9))
    assert period(domain, late) == pytest.approx([0.120 + 0.008])


def test_a_strategy_does_not_depend_on_its_neighbours_in_the_population() -> None:
    graph = chain_graph(((64, 32), (300, 7), (128, 64), (33,), (10, 128)), (1,), factor_rows=4)
    domain = domain_of(graph, cluster_of(2, 2, startup=1e-4))
    rng = np.random.default_rng(3)
    strategies = [random_strategy(domain, rng) for _ in range(50)]
    together = period(domain, *strategies)
    alone = [period(domain, strategy)[0] for strategy in strategies]
    np.testing.assert_array_equal(together, alone)
    assert len(set(np.round(together, 9))) > 25


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
    # Those that wait for step() are prepared by the same thread, behind the four before: the eighth
    # at 240.
    values = strategy_of(domain, lambda v: ReduceScatter(v, sharded_update=True))
    assert period(domain, values) == pytest.approx([0.240 + 0.0075 + 0.040])
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
