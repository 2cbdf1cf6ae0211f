"""The command line as users run it: a process of its own in a folder of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from autosync.cluster_file import save_cluster
from autosync.documents import to_json
from tests.domains import chain_graph, grid_cluster

ROOT = Path(__file__).resolve().parents[3]
LONGEST_SECONDS = 600
"""Not what it takes, but when to give up: other load may make a tuning many times slower."""


def start(
    folder: Path, *arguments: str, prepare: Callable[[], None] | None = None
) -> "subprocess.Popen[str]":
    """Of a terminal, as it were: what a shell starts in the background ignores Ctrl-C, and so
    would all that these tests start there. prepare: called in the process instead of that."""
    return subprocess.Popen(
        [sys.executable, "-m", "autosync.api.cli.main", *arguments],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare or _heed_control_c,
    )


def _heed_control_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def autosync(folder: Path, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run to the end; the exit code must be `code`."""
    process = start(folder, *arguments)
    try:
        out, error = process.communicate(timeout=LONGEST_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}\n{error}"
    assert "Traceback" not in error, error
    return subprocess.CompletedProcess(arguments, process.returncode, out, error)


def environment(folder: Path) -> dict[str, str]:
    """This process's, with logs in `folder` and the clone on the path from any folder."""
    return {**os.environ, "XDG_STATE_HOME": str(folder), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def small_inputs(folder: Path) -> tuple[str, str]:
    """A graph of six variables and a cluster of two nodes, as files."""
    (folder / "chain.json").write_text(to_json(chain_graph()))
    save_cluster(grid_cluster(2), folder / "pair.yaml")
    return "chain.json", "pair.yaml"
