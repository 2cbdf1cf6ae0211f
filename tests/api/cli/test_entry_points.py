"""The names under which the command line is started."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from autosync.__main__ import run
from tests.api.cli.command import (
    LONGEST_SECONDS,
    ROOT,
    autosync,
    completed,
    environment,
    small_inputs,
)


def test_the_installed_command_is_there() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["autosync"].partition(":")
    assert getattr(import_module(module), function) is run


def test_the_module_runs_as_the_command(tmp_path: Path) -> None:
    """Started by the interpreter: the other tests fork it from a server."""
    done = subprocess.run(
        [sys.executable, "-m", "autosync.api.cli.main", "models"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
    )
    assert "resnet50" in done.stdout, done.stderr
    assert autosync(tmp_path, "models").stdout == done.stdout


def test_a_shell_completes_names(tmp_path: Path) -> None:
    offered = {
        ("rank", "resnet"): "resnet50",
        ("tune", "resnet50", "example-4"): "example-4x1",
        ("clusters", "aws-p5-"): "aws-p5-48xlarge-x4",
        ("models", "bert_"): "bert_base",
        ("predict", "resnet50", "example-4x1", "--strategy", "MG"): "MG-WFBP",
        ("import-cluster", "hostfile", "hosts", "--device", "gh"): "gh200",
    }
    for (*_, begun), name, found in zip(
        offered, offered.values(), completed(tmp_path, *offered), strict=True
    ):
        assert name in found
        assert all(each.startswith(begun) for each in found)


def test_a_ranking_where_no_database_is_makes_none_and_loads_no_torch(tmp_path: Path) -> None:
    model, cluster = small_inputs(tmp_path)
    words = ["autosync", "rank", model, cluster, "--proposals", "50"]
    code = (
        f"import sys; from autosync.api.cli.main import app; sys.argv = {words}\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('scipy.stats', 'torch') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(tmp_path),
        check=True,
        capture_output=True,
        text=True,
    )
    assert "predicted" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "[]"
    assert not list(tmp_path.glob("*.db"))
