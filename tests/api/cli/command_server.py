"""The process that commands are forked from: it has loaded what they share, libraries and the
application that most commands call, which takes longer than most commands. The modules of the
command line itself each command loads for itself: they read the terminal's settings.

Requests come on a socket, each with its standard streams; the answers are the process's id, then
its exit code. At the end of the socket this process ends.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from typing import Any

LIBRARIES = (
    *("numpy", "numba", "scipy.optimize", "scipy.stats", "pandas", "torch", "pydantic"),
    *("sqlalchemy.orm", "alembic.command", "autosync.api.http.app"),
)
"""None of them reads the environment as it is loaded."""
REQUEST_BYTES = 1 << 20
STREAMS = 3


def become(channel: socket.socket, request: dict[str, Any], streams: list[int]) -> None:
    """As if the interpreter had been started so."""
    channel.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    sys.path[0] = request["folder"]


def fork_commands(channel: socket.socket) -> None:
    """Returns in each fork, and at the end exits in the server."""
    while True:
        request, streams, *_ = socket.recv_fds(channel, REQUEST_BYTES, STREAMS)
        if not request:
            sys.exit()
        child = os.fork()
        if not child:
            return become(channel, json.loads(request), streams)
        for stream in streams:
            os.close(stream)
        channel.send(f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        channel.send(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def main() -> None:
    for module in LIBRARIES:
        importlib.import_module(module)
    gc.freeze()  # what is shared stays so
    fork_commands(socket.socket(fileno=int(sys.argv[1])))
    run_command()


def run_command() -> None:
    """Ends as an interpreter does that takes no modules apart: of the libraries that forks share
    that takes most of a short command's time."""
    try:
        runpy.run_module("autosync.api.cli.main", run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if not isinstance(left.code, int):  # the interpreter knows what that means
            raise
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(left.code)


if __name__ == "__main__":
    main()
