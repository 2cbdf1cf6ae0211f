"""The process that commands and services are forked from: it has loaded what they share, which
takes longer than most commands. The modules of the command line take the terminal's settings from
it: it has none, and NO_COLOR is set.

Each process of tests connects to the address that is this one's argument. Its requests come with
standard streams and a pipe for the exit code; the answers are the processes' ids. The fork servers
of pools that commands open are forked from this process, too, in place of new interpreters that
load torch: each by a connection to `FORK_SERVERS`, which becomes the fork server's channel. This
process ends when the last process of tests does.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from autosync.api import cli
from autosync.api.cli import stop_signals
from autosync.trials.launchers import local_launcher
from autosync.trials.pool import fork_server
from autosync.trials.pool.fork_server import ForkServer
from tests.api.openapi_document import built_once

LIBRARIES = (
    *("numpy", "numba", "scipy.optimize", "scipy.stats", "pandas", "torch", "pydantic"),
    *("sqlalchemy.orm", "alembic.command", "autosync.api.http.app"),
    *("autosync.api.client.rest_client", "autosync.api.engine.queue_worker"),
    "autosync.simulator.learned.learned_simulator",
)
"""None of them reads the environment as it is loaded."""
MAIN = "autosync.api.cli.main"
REQUEST_BYTES = 1 << 20
STREAMS = 3
FORK_SERVERS = f"\0autosync-fork-servers-{os.getpid()}"
LEAVE_SECONDS = 300.0
"""How long a command that is asked to stop may take to give back what runs and say how to go on:
beside other load longer than a user would wait."""


class ForkedForkServer(ForkServer):
    """Forked from this file's process."""

    def start(self, environment: Mapping[str, str]) -> socket.socket:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.connect(FORK_SERVERS)
        return channel


def become(request: dict[str, Any], streams: list[int]) -> str:
    """As if the interpreter had been started so; the module that it runs."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(STREAMS, os.sysconf("SC_OPEN_MAX"))
    ignored = request["ignores_interrupt"]
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    sys.path[0] = request["folder"]
    local_launcher.ForkServer = ForkedForkServer  # type: ignore[attr-defined]
    stop_signals.LEAVE_SECONDS = LEAVE_SECONDS
    return str(request["module"])


def become_fork_server(channel: int) -> None:
    os.setsid()
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.dup2(channel, STREAMS)
    os.closerange(STREAMS + 1, os.sysconf("SC_OPEN_MAX"))
    sys.argv[1:] = [str(STREAMS)]
    fork_server.main()


def forks(
    selector: selectors.BaseSelector, commands: socket.socket, fork_servers: socket.socket
) -> tuple[dict[str, Any] | None, list[int]]:
    """Returns in each fork: its request and its descriptors, or None and the channel of a fork
    server. When no channel is left, it exits in the server."""
    channels = 0
    for listener in (commands, fork_servers):
        listener.listen()
        selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if isinstance(key.data, tuple):
                selector.unregister(key.fileobj)
                fork_server.report_exit(*key.data)
                continue
            assert isinstance(key.fileobj, socket.socket)
            if key.fileobj is commands:
                channel, _ = commands.accept()
                channel.send(b"ready")
                selector.register(channel, selectors.EVENT_READ)
                channels += 1
                continue
            if key.fileobj is fork_servers:
                for module in fork_server.LOADED:
                    importlib.import_module(module)
                received, descriptors = b"null", [fork_servers.accept()[0].detach()]
                status_end = os.open(os.devnull, os.O_WRONLY)
            else:
                received, descriptors, *_ = socket.recv_fds(key.fileobj, REQUEST_BYTES, STREAMS + 1)
                if not received:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    channels -= 1
                    if not channels:
                        sys.exit()
                    continue
                status_end = descriptors.pop()
            child = os.fork()
            if not child:
                return json.loads(received), descriptors
            if key.fileobj is not fork_servers:
                with suppress(ConnectionError):  # it has ended meanwhile
                    key.fileobj.send(str(child).encode())
            ended = os.pidfd_open(child)
            selector.register(ended, selectors.EVENT_READ, (child, ended, status_end))
            for descriptor in descriptors:
                os.close(descriptor)


def command_modules() -> list[str]:
    """But the one that `python -m` runs."""
    found = pkgutil.walk_packages(cli.__path__, f"{cli.__name__}.")
    return [each.name for each in found if each.name != MAIN]


@contextmanager
def no_terminal() -> Iterator[None]:
    """What is printed goes nowhere: the command line looks where as it is loaded."""
    kept = [os.dup(stream) for stream in (1, 2)]
    with Path(os.devnull).open("w") as nothing:
        for stream in (1, 2):
            os.dup2(nothing.fileno(), stream)
    try:
        yield
    finally:
        for stream, before in zip((1, 2), kept, strict=True):
            os.dup2(before, stream)
            os.close(before)


def main() -> None:
    with no_terminal():
        for module in (*LIBRARIES, *command_modules()):
            importlib.import_module(module)
    built_once()
    gc.freeze()  # what is shared stays so
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as commands,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as fork_servers,
        selectors.DefaultSelector() as selector,
    ):
        fork_servers.bind(FORK_SERVERS)
        commands.bind(f"\0{sys.argv[1]}")
        request, descriptors = forks(selector, commands, fork_servers)
    if request is None:
        become_fork_server(*descriptors)
    else:
        run(become(request, descriptors))


def run(module: str) -> None:
    """Ends as an interpreter does that takes no modules apart: of the libraries that forks share
    that takes most of a short command's time."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if not isinstance(left.code, int):  # the interpreter knows what that means
            raise
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(left.code)


if __name__ == "__main__":
    main()
