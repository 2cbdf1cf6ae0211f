"""The real service in a process of its own, on a free port."""

import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.api.cli.command import fork_service


@dataclass(frozen=True)
class Service:
    address: str
    pid: int

    def peak_memory_bytes(self) -> int:
        """The largest resident size so far."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise ValueError("no VmHWM")


@contextmanager
def served(url: str, token: str = "", *limits: str, root_path: str = "") -> Iterator[Service]:
    for _ in range(PORTS):
        port = free_port()
        arguments = [url, str(port), root_path, token, *limits]
        pid = fork_service(arguments)
        process, address = os.pidfd_open(pid), f"http://127.0.0.1:{port}"
        if _answers(process, address):
            break
        os.close(process)
    else:
        raise AssertionError("the service ended at once")
    try:
        yield Service(address, pid)
    finally:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended = _has_ended(process, PATIENCE_SECONDS)
        os.close(process)
        assert ended, "the service does not end"


def children(pid: int) -> list[int]:
    """The processes that any thread of this process has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has ended meanwhile
            found += map(int, (task / "children").read_text().split())
    return found


PORTS = 3
"""That are tried: another process may take one before the service does."""
PATIENCE_SECONDS = 200
"""When to give up on a process that other load may slow down."""


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        port: int = free.getsockname()[1]
        return port


def _has_ended(process: int, within_seconds: float = 0.0) -> bool:
    """process: a descriptor of it."""
    return bool(select.select([process], [], [], within_seconds)[0])


def _answers(process: int, address: str) -> bool:
    """Whether it comes up; not where it ends before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if _has_ended(process):
            return False
        try:
            httpx.get(f"{address}/v1/health", timeout=PATIENCE_SECONDS)
            return True
        except httpx.TransportError:
            time.sleep(0.05)
    signal.pidfd_send_signal(process, signal.SIGKILL)
    raise AssertionError("the service does not answer")
