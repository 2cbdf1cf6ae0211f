"""Kernels beside messages on shaped links: by gloo on the CPU here, and marked `cuda` by NCCL,
whose ranks share a GPU where there is one."""

from dataclasses import replace

import pytest
import torch

from autosync.cluster import Backend
from autosync.trials.contract import TrialRequest, Workload
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.request_names import ComputeDevice
from tests.autosync.trials.conftest import FAULTY
from tests.autosync.trials.contract_suite import assert_gone
from tests.autosync.trials.strategies import ddp, mixed
from tests.domains import chain_graph, domain_of, grid_cluster

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("testbed_possible")]

ON_GPU = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="NOT VERIFIED: this machine has no NVIDIA GPU"
    ),
]


everywhere = pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("cpu", "gloo"),
        pytest.param("cuda", "gloo", marks=ON_GPU),
        pytest.param("cuda", "nccl", marks=ON_GPU),
    ],
)
LAUNCHER = TestbedLauncher(FAULTY, share_gpus=True, repeats=0, check=False)


def computing(device: ComputeDevice, backend: Backend, name: str = "replay") -> Workload:
    domain = domain_of(chain_graph(), replace(grid_cluster(2), backend=backend))
    return Workload(domain, name, compute="kernels", device=device)


@everywhere
def test_gradients_pass_the_shaped_links(device: ComputeDevice, backend: Backend) -> None:
    """The counters of the nodes' interfaces tell: in a ring of two each sends every gradient
    once."""
    workload = computing(device, backend)
    domain = workload.domain
    with LAUNCHER.open(workload) as pool:
        for key, bundle in {"ddp": ddp(domain), "mixed": mixed(domain)}.items():
            result = pool.run(TrialRequest(key, bundle, iterations=3))
            assert result.error is None, result.error
            payload = domain.graph.size_bytes
            assert len(result.sent_bytes) == 2
            assert sum(result.sent_bytes) > payload
        assert max(result.sent_bytes) < 3 * payload + 100_000
        samples = pool.time_messages("all_reduce", 2**16, (0, 1), repeats=2)
        assert len(samples) == 2
    alone = device == "cpu" or torch.cuda.device_count() > 1
    assert ("share a GPU" in result.launcher) != alone
    assert workload.compute_words in result.launcher


@everywhere
def test_a_rank_that_ends_or_hangs_costs_its_trial(device: ComputeDevice, backend: Backend) -> None:
    """The other is in the middle of a message, on NCCL within a kernel that waits for it."""
    workload = computing(device, backend, "faulty")
    plan = mixed(workload.domain)
    with LAUNCHER.open(workload) as pool:
        for key, kind, seconds in (("killed:1", "crashed", 60.0), ("stopped:1", "timeout", 5.0)):
            good = pool.run(TrialRequest(f"before {key}", plan, iterations=2))
            assert good.error is None, good.error
            ranks = pool.worker_pids()
            failed = pool.run(TrialRequest(key, plan, iterations=2, timeout_seconds=seconds)).error
            assert failed is not None
            assert failed.kind == kind
            assert_gone(ranks)
