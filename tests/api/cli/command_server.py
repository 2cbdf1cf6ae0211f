"""The process that commands and services are forked from: it has loaded what they share, libraries
and the application, which takes longer than most commands. The modules of the command line itself
each command loads for itself: they read the terminal's settings.

Requests come on a socket, each with its standard streams; the answers are the process's id, then,
where the request waits for its end, its exit code. At the end of the socket this process ends.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from contextlib import suppress
from typing import Any

from tests.api.openapi_document import built_once

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


def fork_processes(channel: socket.socket) -> str:
    """Returns in each fork, with the module that it runs, and at the end exits in the server."""
    while True:
        received, streams, *_ = socket.recv_fds(channel, REQUEST_BYTES, STREAMS)
        if not received:
            sys.exit()
        with suppress(ChildProcessError):  # those for which no request waits
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        request = json.loads(received)
        child = os.fork()
        if not child:
            become(channel, request, streams)
            return str(request["module"])
        for stream in streams:
            os.close(stream)
        channel.send(f"{child}\n".encode())
        if request["waits"]:
            _, status = os.waitpid(child, 0)
            channel.send(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def main() -> None:
    for module in LIBRARIES:
        importlib.import_module(module)
    built_once()
    gc.freeze()  # what is shared stays so
    run(fork_processes(socket.socket(fileno=int(sys.argv[1]))))


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
