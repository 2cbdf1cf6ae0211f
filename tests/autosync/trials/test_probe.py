"""Fitted costs: exact on made-up samples, and real ones from real messages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.errors import InvalidInput
from autosync.trials.contract import Workload
from autosync.trials.launchers.command_launcher import CommandLauncher
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.pool.worker_transport import Links
from autosync.trials.probe.message_costs import (
    Sample,
    broadcast_rounds,
    fit,
    link_seconds,
    nonnegative_least_squares,
    probe,
    visible_link_seconds,
    worker_counts,
)
from tests.domains import domain_of, grid_cluster


@given(startup=st.floats(0, 1e-2), per_worker=st.floats(0, 1e-3), per_byte=st.floats(0, 1e-9))
@settings(max_examples=50, deadline=None)
def test_a_line_is_found_again(startup: float, per_worker: float, per_byte: float) -> None:
    samples = [
        Sample(
            "all_reduce",
            size,
            workers,
            1e-4 + startup + per_worker * workers + per_byte * size,
            1e-4,
        )
        for size in (1e3, 1e5, 1e7)
        for workers in (2, 3, 4)
    ]
    cost = fit(samples)
    assert cost.residual == pytest.approx(0, abs=1e-6)
    for sample in samples:
        predicted = (
            cost.startup_seconds
            + cost.startup_seconds_per_worker * sample.workers
            + cost.seconds_per_byte * sample.wire_bytes
        )
        assert predicted == pytest.approx(sample.seconds - 1e-4, rel=1e-3, abs=1e-9)


def test_no_cost_is_negative() -> None:
    terms = np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 4.0]])
    falling = nonnegative_least_squares(terms, np.array([3.0, 2.0, 1.0]))
    assert falling == pytest.approx([2.0, 0.0])
    assert nonnegative_least_squares(terms, -np.ones(3)) == pytest.approx([0.0, 0.0])


def test_worker_counts_vary_and_cross_the_network_first() -> None:
    assert worker_counts(grid_cluster(4)) == ((0, 1), (0, 1, 2), (0, 1, 2, 3))
    assert worker_counts(grid_cluster(2, 2)) == ((0, 2), (0, 1, 2), (0, 1, 2, 3))
    with pytest.raises(InvalidInput, match="2 ranks"):
        worker_counts(grid_cluster(2))


def test_links_own_time_by_kind() -> None:
    cluster = grid_cluster(4, 1, 0.8)  # 1e8 bytes a second
    everyone = (0, 1, 2, 3)
    assert link_seconds(cluster, "all_reduce", 1e8, everyone) == pytest.approx(1.5)
    assert link_seconds(cluster, "all_to_all", 1e8, everyone) == pytest.approx(0.75)
    assert link_seconds(cluster, "send_recv", 1e8, everyone) == pytest.approx(3.0)
    assert link_seconds(grid_cluster(2, 2), "all_reduce", 2.5e9, (0, 1)) == pytest.approx(1.0)
    # two children share the root's NIC, then one forwards to the fourth rank: measured 2.96
    assert [broadcast_rounds(count) for count in (1, 2, 3, 4, 8)] == [0, 1, 2, 3, 6]


def test_a_cost_holds_no_link_time_that_the_timeline_adds() -> None:
    cluster, ranks, sizes = grid_cluster(4, 1, 0.8), (0, 1, 2, 3), (1e3, 1e7)  # 1e8 bytes a second

    def seen(links: Links) -> list[float]:
        return [
            visible_link_seconds(links, 0.5, cluster, "all_reduce", size, ranks) for size in sizes
        ]

    assert seen("loopback") == [0.0, 0.0]
    assert seen("cluster") == pytest.approx([1.5e-5, 0.15])
    assert seen("shaped")[0] == 0.0  # within the burst
    assert 0.14 < seen("shaped")[1] < 0.15
    timed = [2e-3 + link for link in seen("cluster")]
    samples = [
        Sample("all_reduce", size, 4, seconds, link)
        for size, seconds, link in zip(sizes, timed, seen("cluster"), strict=True)
    ]
    assert fit(samples).seconds_per_byte == pytest.approx(0.0, abs=1e-15)


def test_launchers_say_whose_links_their_messages_take() -> None:
    workload = Workload(domain_of(cluster=grid_cluster(3)))
    with LocalLauncher().open(workload) as local, CommandLauncher("env").open(workload) as hosts:
        assert not local.at_cluster_rates
        assert hosts.at_cluster_rates
        assert not hosts.shaped


def test_real_messages_give_costs_with_residuals() -> None:
    cluster = grid_cluster(3)
    probed = probe(LocalLauncher(), cluster, sizes=(1024, 65536), repeats=2)
    assert {cost.kind for cost in probed.costs} == {
        "all_reduce",
        "reduce",
        "broadcast",
        "all_gather",
        "all_to_all",
        "send_recv",
    }
    for cost in probed.costs:
        assert cost.residual is not None
        # Which of them it is, a busy machine may hide.
        parts = (cost.startup_seconds, cost.startup_seconds_per_worker, cost.seconds_per_byte)
        assert max(parts) > 0
    assert probed.nodes == cluster.nodes
