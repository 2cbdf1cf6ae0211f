"""Single messages are timed, among ranks that cross the network first."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autosync.cluster import Cluster, Device, Node
from autosync.errors import InvalidInput
from autosync.runtime.transport.base import Operation
from autosync.trials.commands import TimeMessages
from autosync.trials.contract import Workload
from autosync.trials.launchers.command_launcher import CommandLauncher
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.probes import (
    ROOM_BYTES,
    brief_sizes,
    measure_messages,
    timing_pool,
    usual_sizes,
    worker_counts,
)
from autosync.trials.worker.timed_messages import KINDS, time_messages
from tests.domains import domain_of, grid_cluster


def test_worker_counts_vary_and_cross_the_network_first() -> None:
    assert worker_counts(grid_cluster(4)) == ((0, 1), (0, 1, 2), (0, 1, 2, 3))
    assert worker_counts(grid_cluster(2, 2)) == ((0, 2), (0, 1, 2), (0, 1, 2, 3))
    with pytest.raises(InvalidInput, match="2 ranks"):
        worker_counts(grid_cluster(2))


def test_ranks_of_fast_nodes_have_room_for_what_all_others_send_them() -> None:
    """Of eight ports of 400 Gbit/s, which carry 39 GB in the time of the largest message."""
    nodes = tuple(Node(name, (Device("h200", 8),), 3094.3, 3600.0) for name in "ab")
    fast = Cluster("fast", nodes)
    for sizes in (usual_sizes(fast, 1.0), brief_sizes(fast, 1.0)):
        assert max(sizes) == ROOM_BYTES // 15
        assert len(set(sizes)) == len(sizes)


def test_launchers_say_whose_links_their_messages_take() -> None:
    workload = Workload(domain_of(cluster=grid_cluster(3)))
    with LocalLauncher().open(workload) as local, CommandLauncher("env").open(workload) as hosts:
        assert not local.at_cluster_rates
        assert hosts.at_cluster_rates
        assert not hosts.shaped


def test_real_messages_are_told_in_the_domains_units() -> None:
    workload = Workload(domain_of(cluster=grid_cluster(3)), byte_scale=0.5, time_scale=2.0)
    with timing_pool(LocalLauncher(), workload) as pool:
        measured = measure_messages(pool, workload.domain.cluster, (1024, 65536), repeats=2)
    assert not measured.at_cluster_rates
    assert measured.burst_bytes == 0.0
    assert {sample.kind for sample in measured.samples} == set(KINDS)
    assert {sample.size_bytes for sample in measured.samples} == {2048.0, 131072.0}
    assert {sample.workers for sample in measured.samples} == {(0, 1), (0, 1, 2)}
    assert all(sample.seconds > 0 for sample in measured.samples)


def test_a_message_has_its_bytes_whatever_the_default_type_of_the_job() -> None:
    sent: list[int] = []
    work = SimpleNamespace(wait=lambda: None)

    def prepare(operation: Operation, flat: torch.Tensor, sums: torch.Tensor) -> Any:
        sent.append(flat.nbytes)
        return lambda: work

    groups: Any = SimpleNamespace(
        rank=0,
        backend="gloo",
        on=lambda streams: SimpleNamespace(
            transport=lambda *team: SimpleNamespace(prepare=prepare)
        ),
        get=lambda *team: SimpleNamespace(barrier=lambda: work),
    )
    usual = torch.get_default_dtype()
    for dtype in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            command = TimeMessages("all_reduce", 4096, (0, 1), 1)
            time_messages(command, groups, torch.device("cpu"))
        finally:
            torch.set_default_dtype(usual)
    assert sent == [4096, 4096]
