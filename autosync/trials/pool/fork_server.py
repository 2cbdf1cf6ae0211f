"""Workers forked from one process that has loaded torch: all start in the time of one rank.

Each rank by itself takes 2 s of a core to load torch and its compiler (2.13.0), which eight of them
on two cores make 8 s. What a fork may not share, CUDA, is not begun before it.

Requests travel on a socket: the worker's environment, import path and namespaces, and its
descriptors. The fork answers for itself, by its process id or what stopped it; its exit status goes
to a pipe of its own. At the end of the socket the server (`main`) ends.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import selectors
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autosync.cancellation import wait_readable
from autosync.errors import NotSupported
from autosync.trials import commands
from autosync.trials.pool.worker_process import ParentDeath
from autosync.trials.worker import worker_main
from autosync.units import MIB

LOADING_SECONDS = 120.0
FORKING_SECONDS = 60.0
REPLY_BYTES = 2**16

LOADED = ("autosync.trials.worker.rank", "torch._dynamo")
"""The latter torch loads with the first optimizer, and it takes as long as all the rest."""

REQUEST_BYTES = MIB
DESCRIPTORS = 5
"""stdin, stdout, stderr, the end of the parent-death pipe and the pipe for the exit status."""


class ForkedProcess:
    """As much of a `subprocess.Popen[str]` as a worker needs."""

    def __init__(self, pid: int, stdin: int, stdout: int, stderr: int, status: int) -> None:
        self.pid = pid
        self.stdin = os.fdopen(stdin, "w", encoding="utf-8")
        self.stdout = os.fdopen(stdout, encoding="utf-8", errors="backslashreplace")
        self.stderr = os.fdopen(stderr, encoding="utf-8", errors="backslashreplace")
        self._status = os.fdopen(status, "rb")
        self._returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit status, negative for a signal; None where the process that forked it ended
        first.

        Raises:
            subprocess.TimeoutExpired: it lives on.
        """
        if not self._status.closed:
            milliseconds = None if timeout is None else timeout * 1e3
            waiting = select.poll()
            waiting.register(self._status, select.POLLIN)
            if not waiting.poll(milliseconds):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            with self._status:
                answered = self._status.read()
            self._returncode = int(answered) if answered else None
        return self._returncode


@dataclass
class ForkServer:
    """One for a whole pool. Starts with the first fork; safe to share between threads."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _process: "subprocess.Popen[bytes] | None" = None
    _channel: socket.socket | None = None

    def fork(
        self,
        environment: Mapping[str, str],
        namespaces: Sequence[str],
        workloads: Sequence[str],
        parent_death: ParentDeath,
    ) -> ForkedProcess:
        """A new worker. namespaces: files of those that it enters, in that order.

        Raises:
            NotSupported: torch cannot be loaded, or a namespace not be entered.
        """
        request = {
            "environment": dict(environment),
            "path": [os.getcwd(), *filter(None, sys.path)],  # as of `python -m`
            "namespaces": list(namespaces),
            "workloads": list(workloads),
        }
        theirs_in, stdin = os.pipe()
        stdout, theirs_out = os.pipe()
        stderr, theirs_err = os.pipe()
        status, theirs_status = os.pipe()
        theirs = [theirs_in, theirs_out, theirs_err, parent_death.worker_end, theirs_status]
        try:
            with self._lock:
                pid = self._ask(environment, json.dumps(request).encode(), theirs)
        except BaseException:  # whatever it was, no descriptor stays open
            parent_death.disarm()
            for descriptor in (*theirs, stdin, stdout, stderr, status):
                os.close(descriptor)
            raise
        parent_death.arm(pid)
        for descriptor in (theirs_in, theirs_out, theirs_err, theirs_status):
            os.close(descriptor)
        return ForkedProcess(pid, stdin, stdout, stderr, status)

    def close(self) -> None:
        """End the process. Workers that it forked are not its own to end."""
        with self._lock:
            self._end()

    def _ask(self, environment: Mapping[str, str], request: bytes, theirs: list[int]) -> int:
        channel = self._channel or self._load(environment)
        try:
            socket.send_fds(channel, [request], theirs)
            answered = _received(channel, FORKING_SECONDS)
        except OSError:
            answered = b""
        except BaseException:  # its answer would be taken for that to the next request
            self._end()
            raise
        if not answered:  # it was killed: the next worker group gets a new one
            self._end()
            raise self._refusal("the process that forks them has ended")
        answer = json.loads(answered)
        if "error" in answer:
            raise self._refusal(answer["error"])
        return int(answer["pid"])

    def start(self, environment: Mapping[str, str]) -> socket.socket:
        """The channel to a new process, which says when it has loaded torch."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "autosync.trials.pool.fork_server",
                    str(theirs.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=dict(environment),
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        return ours

    def _load(self, environment: Mapping[str, str]) -> socket.socket:
        self._channel = channel = self.start(environment)
        try:
            ready = _received(channel, LOADING_SECONDS)
        except OSError:
            ready = b""
        except BaseException:  # an interrupt, too, leaves no process
            self._end()
            raise
        if not ready:
            last = self._end().strip().rpartition("\n")[2]
            raise self._refusal(last or "torch was not loaded in time")
        return channel

    def _end(self) -> str:
        """End the process where there is one; what it wrote to stderr."""
        channel, process = self._channel, self._process
        self._channel = self._process = None
        if channel is not None:
            channel.close()
        if process is None:
            return ""
        process.kill()
        _, written = process.communicate()
        return written.decode(errors="backslashreplace")

    @staticmethod
    def _refusal(why: str) -> NotSupported:
        return NotSupported(
            f"workers cannot be started here: {why}.",
            thing="worker",
            remedy="See that `python -c 'import torch'` works, and that the machine has memory.",
        )


def _received(channel: socket.socket, seconds: float) -> bytes:
    """What comes next within so many seconds; empty where nothing does, or the other end has
    gone."""
    return channel.recv(REPLY_BYTES) if wait_readable(channel.fileno(), seconds) else b""


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
                    report_exit(*key.data)


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


def report_exit(child: int, ended: int, status_end: int) -> None:
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
