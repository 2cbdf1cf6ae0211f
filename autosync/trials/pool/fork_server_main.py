"""The process that workers are forked from: torch is loaded once, however many ranks there are.

Requests come on a socket (`fork_server`): the worker's environment, import path and
namespaces, and its descriptors. The fork answers for itself, by its process id or what stopped it;
how it ends goes to a pipe of its own. At the end of the socket this process ends.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import socket
import sys
import traceback
from typing import Any

from autosync.trials import commands
from autosync.trials.worker import worker_main
from autosync.units import MIB

LOADED = ("autosync.trials.worker.rank", "torch._dynamo")
"""The latter torch loads with the first optimizer, and it takes as long as all the rest."""

REQUEST_BYTES = MIB
DESCRIPTORS = 5
"""stdin, stdout, stderr, the end of the parent-death pipe and the pipe for the exit status."""


def main() -> None:
    for module in LOADED:
        importlib.import_module(module)
    commands.build_adapters()
    channel = socket.socket(fileno=int(sys.argv[1]))
    gc.collect()
    gc.freeze()  # what is shared stays so
    channel.send(b"ready")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody reads it any longer
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is channel:
                    request, descriptors, *_ = socket.recv_fds(channel, REQUEST_BYTES, DESCRIPTORS)
                    if not request:
                        os._exit(0)
                    _fork(channel, json.loads(request), descriptors, selector)
                else:
                    selector.unregister(key.fileobj)
                    _tell_exit(*key.data)


def _fork(
    channel: socket.socket,
    request: dict[str, Any],
    descriptors: list[int],
    selector: selectors.BaseSelector,
) -> None:
    child = os.fork()
    if not child:
        _become_worker(channel, request, descriptors)
    *others, status_end = descriptors
    for descriptor in others:
        os.close(descriptor)
    ended = os.pidfd_open(child)
    selector.register(ended, selectors.EVENT_READ, (child, ended, status_end))


def _tell_exit(child: int, ended: int, status_end: int) -> None:
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
        os.write(status_end, str(os.waitstatus_to_exitcode(status)).encode())
    os.close(status_end)
    os.close(ended)


def _become_worker(channel: socket.socket, request: dict[str, Any], descriptors: list[int]) -> None:
    """Does not return."""
    try:
        os.setsid()
        *streams, parent_death_end, _ = descriptors
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        try:
            enter(request["namespaces"])
        except OSError as error:
            channel.send(json.dumps({"error": str(error)}).encode())
            os._exit(1)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path[:] = request["path"]
        channel.send(json.dumps({"pid": os.getpid()}).encode())
        channel.detach()
        os.closerange(3, parent_death_end)
        os.closerange(parent_death_end + 1, os.sysconf("SC_OPEN_MAX"))
        worker_main.work(request["workloads"])
    except BaseException:  # the end of the process: whatever it was, its launcher reads it
        traceback.print_exc()
    finally:
        os._exit(1)


def enter(namespaces: list[str]) -> None:
    """Make the namespaces behind these files this process's own, as nsenter does.

    Raises:
        OSError: one is not there, or this process may not enter it.
    """
    files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in namespaces]
    libc = ctypes.CDLL(None, use_errno=True)
    for file, path in zip(files, namespaces, strict=True):
        if libc.setns(file, 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        os.close(file)


if __name__ == "__main__":
    main()
