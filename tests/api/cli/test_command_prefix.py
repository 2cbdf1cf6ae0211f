"""A tuning whose ranks are reached by a prefix."""

import json
from pathlib import Path

from autosync.bundle import load_bundle
from autosync.cluster import Cluster, Device, Node
from autosync.cluster.cluster_file import save_cluster
from tests.api.cli.command import autosync, small_inputs

OPTIONS = ("--budget", "2", "--repeats", "1", "--proposals", "50", "--no-probe", "--launcher")


def test_tuning_behind_a_prefix(tmp_path: Path) -> None:
    """Every host of the cluster is this machine, under two addresses."""
    model, _ = small_inputs(tmp_path)
    nodes = tuple(Node(f"127.0.0.{i}", (Device("cpu"),), 5.0) for i in (1, 2))
    save_cluster(Cluster("here", nodes), tmp_path / "here.yaml")
    reached = tmp_path / "reached"
    prefix = f"sh -c 'echo {{host}} >> {reached}; exec {{command}}'"
    done = autosync(
        tmp_path, "tune", model, "here.yaml", *OPTIONS, "command", "--prefix", prefix, "--json"
    )
    assert "command (sh, 2 hosts)" in json.dumps(json.loads(done.stdout))
    assert set(reached.read_text().split()) == {"127.0.0.1", "127.0.0.2"}
    assert load_bundle(tmp_path / "best.json").hosts == ("127.0.0.1", "127.0.0.2")
