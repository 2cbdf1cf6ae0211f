"""The example scripts train under torchrun, and the two lines change nothing but the speed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autosync.bundle import bundle, save_bundle
from autosync.clusterfile import load_cluster
from autosync.domain import Domain
from autosync.importing import import_module, load_target
from autosync.profiling import estimate_profile
from search.builders import BUILDERS
from tests.cli.command import ROOT

EXAMPLES = ROOT / "examples"


def trained(script: str, *arguments: str) -> list[float]:
    """The losses that the script prints, epoch by epoch."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(EXAMPLES / script), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [float(line.split()[-1]) for line in done.stdout.splitlines() if "loss" in line]


@pytest.fixture(scope="module")
def domain() -> Domain:
    target = load_target("examples.network:example")
    graph = import_module(
        target.module, target.example_inputs, target.loss, name="example", batch_size=16
    )
    cluster = load_cluster(EXAMPLES / "two_processes.yaml")
    return Domain(graph, cluster, estimate_profile(graph, "cpu"))


@pytest.fixture(scope="module")
def before() -> list[float]:
    return trained("before.py")


@pytest.mark.parametrize("name", ["ddp", "dear", "ps_load_balanced"])
def test_after_trains_as_before(
    tmp_path: Path, domain: Domain, before: list[float], name: str
) -> None:
    strategy = BUILDERS[name].build(domain)
    save_bundle(bundle(strategy, domain), tmp_path / "best.json")
    after = trained("after.py", str(tmp_path / "best.json"))
    assert len(before) == 2
    assert before[1] != before[0]
    assert after == pytest.approx(before, abs=2e-4)
