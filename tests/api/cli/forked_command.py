"""Processes forked from one that has loaded the libraries (`command_server`), one for each run of
tests: loading them takes longer than most commands."""

import atexit
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[3]
LONGEST_SECONDS = 600
"""Not what it takes, but when to give up: other load may make a tuning many times slower."""


class ForkedCommand:
    """As much of a `subprocess.Popen[str]` as tests need. Its output goes to files, which may be
    read while it runs."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        ignores_interrupt: bool = False,
    ) -> None:
        self.returncode: int | None = None
        # closed when it has ended
        self._files = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._written = "", ""
        out, error = (file.fileno() for file in self._files)
        self.pid, self._status = fork(
            module, arguments, folder, environment, (out, error), ignores_interrupt
        )

    def output(self) -> tuple[str, str]:
        """What it has written to stdout and to stderr so far."""
        if self.returncode is None:
            out, error = (Path(f"/proc/self/fd/{each.fileno()}") for each in self._files)
            self._written = out.read_text(), error.read_text()
        return self._written

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float = LONGEST_SECONDS) -> int:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._status, select.POLLIN)
            if not ended.poll(timeout * 1e3):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            with self._status, self._files[0], self._files[1]:
                self.output()
                self.returncode = int(self._status.read())
        return self.returncode

    def communicate(self, timeout: float = LONGEST_SECONDS) -> tuple[str, str]:
        self.wait(timeout)
        return self.output()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """It has ended when this returns."""
        self.send_signal(signal.SIGKILL)
        self.wait()


def fork_service(arguments: Sequence[str]) -> int:
    """The id of a process that runs `tests.api.http.service_process`, with this one's streams."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pid, status = fork("tests.api.http.service_process", arguments, ROOT, environment, (1, 2))
    status.close()
    return pid


def fork(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    streams: tuple[int, int],
    ignores_interrupt: bool = False,
) -> tuple[int, IO[str]]:
    """The id of a process that runs a module as `python -m` does, and where its exit code comes.
    streams: descriptors of its stdout and its stderr."""
    request = {
        "module": module,
        "arguments": arguments,
        "folder": str(folder.resolve()),
        "environment": dict(environment),
        "ignores_interrupt": ignores_interrupt,
    }
    status, its_status = os.pipe()
    server = _server()
    with Path(os.devnull).open() as nothing:
        descriptors = [nothing.fileno(), *streams, its_status]
        socket.send_fds(server, [json.dumps(request).encode()], descriptors)
    os.close(its_status)
    return int(server.recv(64)), os.fdopen(status)


@cache
def _server() -> socket.socket:
    """The channel to the server; whoever needs it first starts it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    address = f"autosync-commands-{run}"
    with (Path(tempfile.gettempdir()) / f"{address}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        channel = _connected(address) or _started(address)
    atexit.register(channel.close)
    return channel


def _connected(address: str) -> socket.socket | None:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.settimeout(LONGEST_SECONDS)
    with suppress(ConnectionError):
        channel.connect(f"\0{address}")
        if channel.recv(64):  # empty where the server ends
            return channel
    channel.close()
    return None


def _started(address: str) -> socket.socket:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.api.cli.command_server", address],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
    )
    while process.poll() is None:
        if channel := _connected(address):
            atexit.register(_end, process)
            return channel
        time.sleep(0.05)
    raise AssertionError("the server of commands ended at once")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """It ends with the last channel, which may be another process's."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
