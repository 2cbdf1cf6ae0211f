"""The names under which the command line is started."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from autosync.api.cli.main import run
from tests.api.cli.command import ROOT, autosync


def test_the_installed_command_is_there() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["autosync"].partition(":")
    assert getattr(import_module(module), function) is run


def test_the_module_runs_as_the_command(tmp_path: Path) -> None:
    assert "resnet50" in autosync(tmp_path, "models").stdout


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, autosync.api.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
