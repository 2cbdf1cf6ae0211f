"""The complete training scripts, before and after: the same losses and weights, from start to end
and from a checkpoint, by torchrun and by mp.spawn."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autosync.bundle import bundle, save_bundle
from autosync.clusterfile import load_cluster
from autosync.domain import Domain
from autosync.importing import import_module, load_target
from autosync.profiling import estimate_profile
from autosync.strategy import Replica
from search.builders import BUILDERS

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(script: str, *arguments: str, spawn: bool = False) -> list[float]:
    """The held-out losses that the script prints, epoch by epoch."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment["MASTER_PORT"] = port
    command = [sys.executable, *(() if spawn else TORCHRUN), str(EXAMPLES / script), *arguments]
    command += ["--spawn", "2"] if spawn else []
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "does not fit" not in done.stderr
    return [float(line.split()[-1]) for line in done.stdout.splitlines() if "loss" in line]


@pytest.fixture(scope="module")
def domain() -> Domain:
    target = load_target("examples.network:plain")
    graph = import_module(
        target.module, target.example_inputs, target.loss, name="plain", batch_size=16
    )
    cluster = load_cluster(EXAMPLES / "two_processes.yaml")
    return Domain(graph, cluster, estimate_profile(graph, "cpu"))


def shipped(domain: Domain, name: str, path: Path, shares: tuple[float, float]) -> str:
    replicas = tuple(Replica(rank, share) for rank, share in enumerate(shares))
    strategy = replace(BUILDERS[name].build(domain), replicas=replicas)
    save_bundle(bundle(strategy, domain), path)
    return str(path)


def weights(path: Path) -> Tensor:
    state = torch.load(path, weights_only=True)
    momentum = [
        entry["momentum_buffer"] for _, entry in sorted(state["optimizer"]["state"].items())
    ]
    return torch.cat([tensor.flatten() for tensor in (*state["model"].values(), *momentum)])


def test_the_scripts_train_alike(tmp_path: Path, domain: Domain) -> None:
    """After: the first epoch under one strategy, the second under another, with uneven shares."""
    before = run("train_before.py", str(tmp_path / "before.pt"))
    dear = shipped(domain, "dear", tmp_path / "dear.json", (0.5, 0.5))
    uneven = shipped(domain, "zero1_overlap", tmp_path / "uneven.json", (0.75, 0.25))
    after = run("train_after.py", str(tmp_path / "after.pt"), dear, "--epochs", "1", spawn=True)
    after += run("train_after.py", str(tmp_path / "after.pt"), uneven)
    assert len(before) == 2
    assert before[1] < before[0] < 2.3, "the network learns"
    assert after == pytest.approx(before, abs=2e-4)
    wanted, found = weights(tmp_path / "before.pt"), weights(tmp_path / "after.pt")
    assert float((found - wanted).abs().max()) < 1e-4


def test_checkpoints_go_back_to_torchs_ddp(tmp_path: Path, domain: Domain) -> None:
    before = run("train_before.py", str(tmp_path / "before.pt"), spawn=True)
    owned = shipped(domain, "ps_load_balanced", tmp_path / "owned.json", (0.5, 0.5))
    mixed = run("train_after.py", str(tmp_path / "mixed.pt"), owned, "--epochs", "1")
    mixed += run("train_before.py", str(tmp_path / "mixed.pt"))
    assert mixed == pytest.approx(before, abs=2e-4)
    assert (
        float((weights(tmp_path / "mixed.pt") - weights(tmp_path / "before.pt")).abs().max()) < 1e-4
    )
