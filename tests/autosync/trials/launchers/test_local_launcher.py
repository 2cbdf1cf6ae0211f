"""What a trial process is started with, and how often pools measure a disturbed pass again."""

import queue
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.environment import PASSED_VARIABLE, REPEATS_VARIABLE, allowed_environment
from autosync.errors import InvalidInput
from autosync.trials.contract import Workload
from autosync.trials.gpus import CudaMps, shared_gpu_environment
from autosync.trials.launchers import local_launcher
from autosync.trials.launchers.command_launcher import CommandLauncher
from autosync.trials.launchers.local_launcher import DESCRIPTION, LocalLauncher, LocalPlace
from autosync.trials.launchers.ray_launcher import RayLauncher
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.pool.fork_server import ForkServer
from autosync.trials.pool.worker_process import carried_environment
from tests.domains import domain_of, grid_cluster

SECRETS = ("AUTOSYNC_TOKEN", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT")
"""The last is of a family that is allowed."""


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SECRETS, "NCCL_DEBUG", "MY_SETTING", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("AUTOSYNC_DATABASE_URL", "postgresql://tuner:hidden@db/autosync")
    monkeypatch.setenv(PASSED_VARIABLE, "MY_SETTING, NOT_THERE")


def environment_of(place: LocalPlace, rank: int = 0) -> dict[str, str]:
    """What a worker of the place is started with."""
    worker = place.start(rank, (), queue.Queue())
    try:
        entries = Path(f"/proc/{worker.pid}/environ").read_text().split("\0")
    finally:
        worker.kill()
        if place.preload is not None:
            place.preload.close()
    return dict(entry.split("=", 1) for entry in entries if entry)


@pytest.mark.parametrize("preload", [None, ForkServer()], ids=["started", "forked"])
def test_a_trial_process_gets_no_secret(names: None, preload: ForkServer | None) -> None:
    given = environment_of(LocalPlace((), "lo", 0, preload=preload)).keys()
    assert {"PATH", "NCCL_DEBUG", "MY_SETTING", "KUBERNETES_SERVICE_HOST"} <= given
    assert not given & {*SECRETS, "AUTOSYNC_DATABASE_URL"}


def test_nccl_and_mps_of_the_place_come_before_the_users_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NCCL_SOCKET_IFNAME", "NCCL_HOSTID", "CUDA_MPS_PIPE_DIRECTORY"):
        monkeypatch.setenv(name, "users")
    mps = CudaMps()
    mps.variables = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}
    place = LocalPlace((), "eth0", 0, (), ForkServer(), shared_gpu_environment, mps)
    given = environment_of(place, 3)
    assert shared_gpu_environment(3, "eth0").items() <= given.items()
    assert given["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mps"
    assert given["GLOO_SOCKET_IFNAME"] == "eth0"


def test_environment_variables_carried_to_another_host() -> None:
    plain = carried_environment(1, "", False, [("KEY", "given")])
    assert plain["KEY"] == "given"
    assert not [name for name in plain if "IFNAME" in name or "NCCL" in name]
    shared = carried_environment(1, "ib0", True, [("NCCL_PROTO", "LL")])
    assert shared["NCCL_HOSTID"] == "autosync-1"
    assert shared["NCCL_SOCKET_IFNAME"] == "=ib0"
    assert shared["GLOO_SOCKET_IFNAME"] == "ib0"
    assert shared["NCCL_PROTO"] == "LL"  # what is given comes last


def test_a_secret_is_passed_where_it_is_named(names: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PGPASSWORD" in allowed_environment(["PG*"])
    assert "SLURM_JWT" not in allowed_environment(["PG*"])
    monkeypatch.setenv(PASSED_VARIABLE, "SLURM_JWT, MY_*, AWS_*")
    given = allowed_environment()
    assert {"SLURM_JWT", "MY_SETTING"} <= given.keys()
    assert "AWS_SECRET_ACCESS_KEY" not in given  # no pattern takes it along


def repeats_of_launchers() -> list[int]:
    return [
        LocalLauncher().repeats,
        TestbedLauncher().repeats,
        CommandLauncher("ssh").repeats,
        RayLauncher("127.0.0.1:6379").repeats,
    ]


def test_twice_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REPEATS_VARIABLE)
    assert repeats_of_launchers() == [2, 2, 2, 2]
    monkeypatch.setenv(REPEATS_VARIABLE, "")
    assert repeats_of_launchers() == [2, 2, 2, 2]
    monkeypatch.setenv(REPEATS_VARIABLE, "5")
    assert repeats_of_launchers() == [5, 5, 5, 5]
    assert LocalLauncher(repeats=1).repeats == 1


@pytest.mark.parametrize("given", ["-1", "two", "1.5", "9" * 5000])
def test_a_repeats_variable_that_is_no_count_is_refused(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPEATS_VARIABLE, given)
    with pytest.raises(InvalidInput, match="AUTOSYNC_REPEATS is") as refused:
        LocalLauncher()
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("nodes", "share_gpus", "place"),
    [(1, False, "local"), (1, True, DESCRIPTION), (2, False, DESCRIPTION)],
)
def test_between_gpus_of_one_node_links_are_the_clusters_own(
    nodes: int, share_gpus: bool, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_launcher, "refuse_fewer_gpus", lambda *given: None)
    cluster = replace(grid_cluster(nodes, 2), backend="nccl")
    workload = Workload(domain_of(cluster=cluster), compute="kernels", device="cuda")
    with LocalLauncher(share_gpus=share_gpus).open(workload) as pool:
        assert pool.place == place
