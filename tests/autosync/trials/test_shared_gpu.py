"""A control program that only keeps a file stands for CUDA MPS's, which needs a GPU."""

import os
from pathlib import Path

import pytest

from autosync.trials.shared_gpu import MPS_CONTROL, cuda_mps, mps_running, shared_gpu_environment

CONTROL = """#!/bin/sh
control="${CUDA_MPS_PIPE_DIRECTORY:-none}/control"
echo "$* $(readlink -f "$CUDA_MPS_PIPE_DIRECTORY")" >> "$0.calls"
if [ "$1" = -d ]; then test -z "$REFUSES" && touch "$control" && exit 0; exit 1; fi
read -r command
test -e "$control" || exit 1
case "$command" in quit*) rm "$control" ;; esac
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / MPS_CONTROL
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return program


def test_every_rank_is_a_host_of_its_own_to_nccl() -> None:
    first, second = shared_gpu_environment(0), shared_gpu_environment(1, "eth0")
    assert first["NCCL_HOSTID"] != second["NCCL_HOSTID"]
    assert (first["NCCL_SOCKET_IFNAME"], second["NCCL_SOCKET_IFNAME"]) == ("=lo", "=eth0")
    assert "NCCL_SOCKET_IFNAME" not in shared_gpu_environment(0, "")


def test_mps_runs_in_folders_of_its_own_and_ends(control: Path) -> None:
    with cuda_mps() as variables:
        folder = Path(variables["CUDA_MPS_PIPE_DIRECTORY"])
        assert variables["CUDA_MPS_LOG_DIRECTORY"] == str(folder)
        assert mps_running({**os.environ, **variables})
        assert not mps_running()
    assert not folder.exists()
    assert not mps_running({**os.environ, **variables})


def test_mps_that_runs_already_is_used_and_left(
    control: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    (tmp_path / "control").touch()
    with cuda_mps() as variables:
        assert variables == {}
        assert mps_running()
    assert mps_running()


def test_a_machine_without_mps_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with cuda_mps() as variables:
        assert variables == {}
        assert not mps_running()


def test_mps_that_does_not_start_leaves_no_folder(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSES", "1")
    with cuda_mps() as variables:
        assert variables == {}
    folders = {
        line.split()[1]
        for line in (Path(f"{control}.calls")).read_text().splitlines()
        if line.startswith("-d")
    }
    assert folders
    assert not any(Path(folder).exists() for folder in folders)
