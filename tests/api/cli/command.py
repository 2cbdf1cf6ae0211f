"""The command line as users run it: a process of its own in a folder of its own."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, TextIO

from autosync.cluster.cluster_file import save_cluster
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
    """Run to the end, from a server that has loaded the libraries; the exit code must be `code`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        found = _run_forked(folder, arguments, out, error)
        for stream in (out, error):
            stream.seek(0)
        done = subprocess.CompletedProcess(arguments, found, out.read(), error.read())
    assert found == code, f"{arguments}: {found}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


def _run_forked(folder: Path, arguments: tuple[str, ...], out: IO[str], error: IO[str]) -> int:
    """The exit code."""
    request = {
        "module": "autosync.api.cli.main",
        "waits": True,
        "folder": str(folder.resolve()),
        "arguments": arguments,
        "environment": environment(folder),
    }
    with _forked(request, out.fileno(), error.fileno()) as answers:
        pid = int(answers.readline())
        try:
            return int(answers.readline())
        except BaseException:  # whatever it was, nobody waits for the command any longer
            os.kill(pid, signal.SIGKILL)
            _server.cache_clear()  # its answer would be taken for that to the next command
            raise


def fork_service(arguments: Sequence[str]) -> int:
    """The id of a process that runs `tests.api.http.service_process`, with this one's streams."""
    request = {
        "module": "tests.api.http.service_process",
        "waits": False,
        "folder": str(ROOT),
        "arguments": arguments,
        "environment": {**os.environ, "PYTHONPATH": str(ROOT)},
    }
    with _forked(request, 1, 2) as answers:
        return int(answers.readline())


def _forked(request: dict[str, Any], out: int, error: int) -> TextIO:
    """What the server answers. out, error: descriptors of the process's streams."""
    server = _server()
    with Path(os.devnull).open() as nothing:
        socket.send_fds(server, [json.dumps(request).encode()], [nothing.fileno(), out, error])
    return server.makefile("r")


@cache
def _server() -> socket.socket:
    """The channel to this process's server, which ends with it."""
    ours, its = socket.socketpair()
    ours.settimeout(LONGEST_SECONDS)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.api.cli.command_server", str(its.fileno())],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        pass_fds=[its.fileno()],
    )
    its.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def environment(folder: Path) -> dict[str, str]:
    """This process's, with logs in `folder` and the clone on the path from any folder."""
    return {**os.environ, "XDG_STATE_HOME": str(folder), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


HEAVY = ("torch", "numba", "scipy", "pandas", "sqlalchemy", "alembic", "fastapi")


def completed(folder: Path, *words: str) -> tuple[list[str], str]:
    """What bash offers for the last word, and which heavy libraries that loaded."""
    code = (
        "import sys; from autosync.api.cli.main import app\n"
        "try: app(prog_name='autosync')\n"
        "except SystemExit: pass\n"
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    asked = {
        "_AUTOSYNC_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("autosync", *words)),
        "COMP_CWORD": str(len(words)),
    }
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**environment(folder), **asked},
        check=True,
        capture_output=True,
        text=True,
    )
    return ran.stdout.split(), ran.stderr.strip()


def small_inputs(folder: Path) -> tuple[str, str]:
    """A graph of six variables and a cluster of two nodes, as files."""
    (folder / "chain.json").write_text(to_json(chain_graph()))
    save_cluster(grid_cluster(2), folder / "pair.yaml")
    return "chain.json", "pair.yaml"
