"""The scripts of examples/ as users start them, and the domains that their bundles are for."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from autosync.cluster.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.importing import import_module, load_target
from autosync.profiling import estimate_profile

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LONGEST_SECONDS = 280

ABORTED_AT_EXIT = "terminate called without an active exception"
"""What torch itself says when a thread of gloo frees a tensor while the interpreter ends: now and
then, on a busy machine, at the end of a script that has only DDP (pytorch issue 190489)."""


def losses(script: str, *arguments: str, spawn: bool = False) -> list[float]:
    """What the script prints epoch by epoch, on two ranks; spawn: that it starts itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "MASTER_PORT": port}

    def command(logs: str) -> list[str]:
        started = [str(EXAMPLES / script), *arguments]
        if spawn:
            return [sys.executable, *started, "--spawn", "2"]
        return [sys.executable, *TORCHRUN, "--log-dir", logs, *started]

    checkpoints = [Path(argument) for argument in arguments if argument.endswith(".pt")]
    kept = {path: path.read_bytes() for path in checkpoints if path.is_file()}

    def run() -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as logs:  # torchrun keeps its own
            return subprocess.run(
                command(logs),
                cwd=ROOT,
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                timeout=LONGEST_SECONDS,
            )

    done = run()
    if "before" in script and ABORTED_AT_EXIT in done.stderr:
        for path in checkpoints:  # once more from where it began
            if path in kept:
                path.write_bytes(kept[path])
            else:
                path.unlink(missing_ok=True)
        done = run()
    assert done.returncode == 0, done.stderr
    assert "does not fit" not in done.stderr
    return losses_in(done.stdout)


def losses_in(said: str) -> list[float]:
    return [float(line.split()[-1]) for line in said.splitlines() if "loss" in line]


def example_domain(function: str) -> Domain:
    """Of a function of examples/network.py, on the cluster of two processes."""
    target = load_target(f"examples.network:{function}")
    graph = import_module(
        target.module,
        target.example_inputs,
        target.loss,
        name=function,
        batch_size=target.batch_size,
    )
    cluster = load_cluster(EXAMPLES / "two_processes.yaml")
    return Domain(graph, cluster, estimate_profile(graph, "cpu"))
