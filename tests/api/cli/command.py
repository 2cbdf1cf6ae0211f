"""The command line as users run it: a process of its own in a folder of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from autosync.cluster.cluster_file import save_cluster
from autosync.documents import to_json
from tests.api.cli.forked_command import LONGEST_SECONDS, ROOT, ForkedCommand, fork_service
from tests.domains import chain_graph, grid_cluster

__all__ = [
    "LONGEST_SECONDS",
    "ROOT",
    "autosync",
    "completed",
    "environment",
    "fork_service",
    "small_inputs",
    "start",
]
MODULE = "autosync.api.cli.main"


def start(folder: Path, *arguments: str, ignores_interrupt: bool = False) -> ForkedCommand:
    """Forked from a server that has loaded the libraries. ignores_interrupt: as what a shell starts
    in the background does."""
    return ForkedCommand(MODULE, arguments, folder, environment(folder), ignores_interrupt)


def autosync(folder: Path, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run to the end; the exit code must be `code`."""
    process = start(folder, *arguments)
    try:
        out, error = process.communicate()
    finally:
        process.kill()
    assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}\n{error}"
    assert "Traceback" not in error, error
    return subprocess.CompletedProcess(arguments, code, out, error)


def environment(folder: Path) -> dict[str, str]:
    """This process's, with logs in `folder` and the clone on the path from any folder."""
    return {**os.environ, "XDG_STATE_HOME": str(folder), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


HEAVY = ("torch", "numba", "scipy", "pandas", "sqlalchemy", "alembic", "fastapi")


COMPLETE = f"""
import json, os, sys
from contextlib import suppress
from autosync.api.cli.main import app
for words in json.loads(sys.argv[1]):
    os.environ |= {{"COMP_WORDS": " ".join(("autosync", *words)), "COMP_CWORD": str(len(words))}}
    with suppress(SystemExit):
        app(prog_name="autosync")
    print("-", flush=True)
print([each for each in {HEAVY} if each in sys.modules], file=sys.stderr)
"""


def completed(folder: Path, *lines: Sequence[str]) -> list[list[str]]:
    """What bash offers for the last word of each line. No heavy library is loaded for that."""
    ran = subprocess.run(
        [sys.executable, "-c", COMPLETE, json.dumps(lines)],
        cwd=folder,
        env={**environment(folder), "_AUTOSYNC_COMPLETE": "complete_bash"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stderr.strip() == "[]"
    return [found.split() for found in ran.stdout.split("-\n")[:-1]]


def small_inputs(folder: Path) -> tuple[str, str]:
    """A graph of six variables and a cluster of two nodes, as files."""
    (folder / "chain.json").write_text(to_json(chain_graph()))
    save_cluster(grid_cluster(2), folder / "pair.yaml")
    return "chain.json", "pair.yaml"
