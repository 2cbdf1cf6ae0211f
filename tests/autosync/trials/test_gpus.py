"""Ranks that share a GPU, without one: a control program that only keeps a file stands for CUDA
MPS's, and fake workers tell which GPU they have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autosync.errors import NotSupported
from autosync.trials import gpus
from autosync.trials.contract import TrialRequest, TrialResult
from autosync.trials.gpus import (
    MPS_CONTROL,
    CudaMps,
    mps_running,
    shared_gpu_environment,
    sharing_words,
    socket_environment,
)
from autosync.trials.pool.process_pool import ProcessPool
from autosync.trials.request_names import GPU_BY_MPS, GPU_IN_TURNS
from tests.autosync.trials.contract_suite import assert_failed
from tests.autosync.trials.fake_workers import FakeWorkers
from tests.autosync.trials.strategies import ddp
from tests.waiting import lives, until

ROOT = Path(__file__).parents[3]
CONTROL = """#!/bin/sh
control="${CUDA_MPS_PIPE_DIRECTORY:-none}/control"
if [ "$1" = -d ]; then
    echo "$CUDA_MPS_PIPE_DIRECTORY" >> "$0.started"
    if [ -n "$HANGS" ]; then
        sleep 600 &
        echo $! > "$CUDA_MPS_PIPE_DIRECTORY/${0##*/}.pid"
    fi
    test -z "$REFUSES" && touch "$control"
    exit
fi
read -r command
test -e "$control" || exit 1
case "$command" in quit*) test -z "$HANGS" || exec sleep 600; rm "$control" ;; esac
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records the folder of each daemon in `.started`."""
    program = tmp_path / MPS_CONTROL
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(gpus, "MPS_CLIENT", "")  # there is no GPU to use
    return program


def started(control: Path) -> list[Path]:
    record = Path(f"{control}.started")
    return [Path(line) for line in record.read_text().splitlines()] if record.exists() else []


def test_every_rank_is_a_host_of_its_own_to_nccl() -> None:
    first, second = shared_gpu_environment(0), shared_gpu_environment(1, "eth0")
    assert first["NCCL_HOSTID"] != second["NCCL_HOSTID"]
    assert (first["NCCL_SOCKET_IFNAME"], second["NCCL_SOCKET_IFNAME"]) == ("=lo", "=eth0")
    assert "NCCL_SOCKET_IFNAME" not in shared_gpu_environment(0, "")
    assert second.items() > socket_environment(1, "eth0").items()


def test_how_ranks_share_a_gpu_is_described() -> None:
    assert sharing_words(["", ""], [False, False]) == ""
    assert sharing_words(["x", "y"], [True, True]) == ""
    assert sharing_words(["x", "y", "x"], [True, True, True]) == f"2 ranks {GPU_BY_MPS}"
    assert sharing_words(["x", "x", "x"], [True, False, True]) == f"3 ranks {GPU_IN_TURNS}"


def test_mps_runs_in_a_folder_of_its_own_and_ends(control: Path) -> None:
    with CudaMps() as variables:
        folder = Path(variables["CUDA_MPS_PIPE_DIRECTORY"])
        assert variables["CUDA_MPS_LOG_DIRECTORY"] == str(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert mps_running({**os.environ, **variables})
        assert not mps_running()
    assert started(control) == [folder]
    assert not folder.exists()


def test_mps_that_runs_already_is_used_and_left(
    control: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    (tmp_path / "control").touch()
    with CudaMps() as variables:
        assert variables == {}
        assert mps_running()
    assert mps_running()
    assert not started(control)


def test_a_machine_without_mps_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with CudaMps() as variables:
        assert variables == {}
        assert not mps_running()


@pytest.mark.parametrize("fails_in", ["daemon", "client"])
def test_mps_that_cannot_serve_is_left_out(
    fails_in: str, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fails_in == "daemon":
        monkeypatch.setenv("REFUSES", "1")
    else:
        monkeypatch.setattr(gpus, "MPS_CLIENT", "raise SystemExit(True)")
    with CudaMps() as variables:
        assert variables == {}
    (folder,) = started(control)
    assert not folder.exists()


def test_mps_ends_with_a_process_that_is_killed(control: Path) -> None:
    script = (
        "import time; from autosync.trials import gpus\n"
        "gpus.MPS_CLIENT = ''\n"
        "with gpus.CudaMps():\n    print('ready', flush=True)\n    time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == "ready\n"
        (folder,) = started(control)
        assert (folder / "control").exists()
        owner.kill()
        owner.wait()
    until(lambda: not folder.exists(), "the end of its folder")


def test_a_daemon_that_does_not_answer_is_killed(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANGS", "1")
    monkeypatch.setattr(gpus, "MPS_SCRIPT", gpus.MPS_SCRIPT.replace("timeout 10", "timeout 1"))
    with CudaMps() as variables:
        folder = Path(variables["CUDA_MPS_PIPE_DIRECTORY"])
        daemon = int((folder / f"{MPS_CONTROL}.pid").read_text())
        assert lives(daemon)
    until(lambda: not lives(daemon), "the end of the daemon")
    assert not folder.exists()


def run(pool: ProcessPool, key: str = "a") -> TrialResult:
    return pool.run(TrialRequest(key, ddp(pool.workload.domain)))


@pytest.mark.parametrize(("mps", "words"), [(True, GPU_BY_MPS), (False, GPU_IN_TURNS)])
def test_records_say_that_ranks_shared_a_gpu_and_how(mps: bool, words: str) -> None:
    fake = FakeWorkers(passes=[(1.0, 0.0)] * 9, gpus=("x", "x"), mps=mps)
    with fake.pool(share_gpus=True) as pool:
        result = run(pool)
    assert result.error is None
    assert result.launcher == f"fake workers, 2 ranks {words}"
    assert ("gpu_sharing", f"2 ranks {words}") in result.versions


def test_records_name_what_hosts_differ_in() -> None:
    versions = ({"torch": "2.13.0", "gpu": "A100"}, {"torch": "2.13.0", "gpu": "V100"})
    with FakeWorkers([(1.0, 0.0)] * 9, versions=versions).pool() as pool:
        assert run(pool).versions == (("gpu", "A100 and V100"), ("torch", "2.13.0"))


def test_ranks_share_no_gpu_unless_they_are_let() -> None:
    fake = FakeWorkers(passes=[(1.0, 0.0)] * 9, gpus=("x", "x"))
    with fake.pool() as pool:
        words = ("ranks 0 and 1 share GPU x", "--gpus-per-task", "--share-gpus")
        assert_failed(run(pool), "refused", *words)


def test_every_group_of_workers_has_an_mps_daemon_of_its_own(control: Path) -> None:
    """One whose clients were killed within a kernel may be of no use to others."""
    fake = FakeWorkers(passes=[(1.0, 0.0)] * 9, gpus=("x", "x"), mps=True)
    with fake.pool(share_gpus=True, mps=CudaMps()) as pool:
        fake.errors = {1: "crashed"}
        assert_failed(run(pool), "crashed")
        (first,) = started(control)
        assert not first.exists()
        fake.errors = {}
        assert run(pool, "b").error is None
        _, second = started(control)
        assert second != first
        assert (second / "control").exists()
    assert not second.exists()


def test_a_group_that_cannot_start_leaves_no_daemon(control: Path) -> None:
    fake = FakeWorkers(refusals=[NotSupported("no rank 1 here.")])
    with fake.pool(share_gpus=True, mps=CudaMps()) as pool:
        assert_failed(run(pool), "refused")
        (folder,) = started(control)
        assert not folder.exists()
