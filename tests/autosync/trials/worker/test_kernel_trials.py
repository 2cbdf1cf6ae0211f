"""Trials that compute: on the CPU here, and marked `cuda` on a GPU. Only the device differs."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from autosync.cluster import Backend
from autosync.trials.commands import StretchesTimed, TimeStretches
from autosync.trials.contract import TrialRequest, Workload
from autosync.trials.launchers.local_launcher import LOOPBACK, LocalLauncher, LocalPlace
from autosync.trials.measurement import pass_measurement
from autosync.trials.pool.process_pool import ProcessPool
from autosync.trials.pool.worker_group import WorkerGroup
from autosync.trials.probes import profile_kernels
from tests.autosync.runtime.device.gpus import on_real_gpus
from tests.autosync.trials.strategies import ddp, mixed, small_domain

FEW = LocalLauncher(repeats=0)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with FEW.open(Workload(small_domain(), compute="kernels")) as opened:
        yield opened


def digests(pool: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """Of the replicas after each of three trials, as the ranks answered."""
    seen: list[list[float]] = []

    def noted(request: Any, answers: Any, *others: Any, **named: Any) -> Any:
        seen.append([answer.digest for answer in answers])
        return pass_measurement(request, answers, *others, **named)

    domain = pool.workload.domain
    with monkeypatch.context() as patched:
        patched.setattr("autosync.trials.pool.process_pool.pass_measurement", noted)
        for key, made in {"ddp": ddp(domain), "mixed": mixed(domain), "again": ddp(domain)}.items():
            result = pool.run(TrialRequest(key, made, warmup=1, iterations=3, record=True))
            assert result.error is None, result.error
            assert len(result.iteration_seconds) == 3
            assert result.launcher == pool.description
            assert result.timeline is not None
    assert len(seen) == 3
    return seen


def test_replicas_end_as_those_that_waited(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = profile_kernels(pool, repeats=2)  # leaves the replicas as they were
    assert profile.source == "measured"
    assert "2 ranks at once on CPU" in profile.note
    assert all(seconds > 0 for seconds in profile.forward_seconds + profile.backward_seconds)
    with FEW.open(Workload(small_domain())) as waiting:
        waited = digests(waiting, monkeypatch)
    assert digests(pool, monkeypatch) == waited
    assert pool.description == "local (unshaped links), kernels on the CPU"


@on_real_gpus
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_gpu_replica_ends_as_one_that_waited(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks share the GPU where there is one."""
    domain = small_domain()
    domain = replace(domain, cluster=replace(domain.cluster, backend=backend))
    with FEW.open(Workload(domain)) as waiting:
        waited = digests(waiting, monkeypatch)
    sharing = replace(FEW, share_gpus=True)
    with sharing.open(Workload(domain, compute="kernels", device="cuda")) as computing:
        profile = profile_kernels(computing)
        assert digests(computing, monkeypatch) == waited
        assert torch.cuda.get_device_name() in profile.note
        assert f"CUDA kernels, {backend}" in computing.description
        assert ("share a GPU" in computing.description) == (torch.cuda.device_count() < 2)


def test_one_rank_starts_and_computes() -> None:
    """A group of one meets itself."""
    workload = Workload(small_domain(), compute="kernels")
    group = WorkerGroup(workload, (LocalPlace((), "lo", 0),), LOOPBACK, ())
    try:
        group.start()
        (answer,) = group.ask(TimeStretches(2), StretchesTimed, 200.0)
        assert answer.operations == (0, 0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0)
        assert all(seconds >= 0 for seconds in answer.seconds)
    finally:
        group.kill()
