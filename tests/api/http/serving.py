"""The real service in a process of its own, on a free port."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

SERVER = """
import sys
from autosync.api.http.app import serve
from autosync.api.http.access.access_rules import access_on
from autosync.api.engine.service_limits import limits_from
access, limits = access_on("127.0.0.1", sys.argv[3] or None), limits_from(sys.argv[4:])
serve(sys.argv[1], port=int(sys.argv[2]), access=access, limits=limits)
"""


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
def served(url: str, token: str = "", *limits: str) -> Iterator[Service]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", SERVER, url, str(port), token, *limits])
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(process, address)
        yield Service(address, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=20)


def _wait(process: subprocess.Popen[bytes], address: str) -> None:
    for _ in range(600):
        assert process.poll() is None, "the service ended at once"
        try:
            httpx.get(f"{address}/v1/health", timeout=5)
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the service did not answer")
