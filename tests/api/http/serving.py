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

from autosync.api.http.listening import shown_address

SERVER = """
import sys
from autosync.api.http.app import serve
from autosync.api.http.access.access_rules import access_on
from autosync.api.http.listening import listening_sockets
from autosync.api.engine.service_limits import limits_from
url, host, port, root_path, token, *limits = sys.argv[1:]
access = access_on(host, token or None)
sockets = listening_sockets(host, int(port))
serve(url, sockets, access, limits_from(limits), root_path=root_path)
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
def served(
    url: str, token: str = "", *limits: str, host: str = "127.0.0.1", root_path: str = ""
) -> Iterator[Service]:
    port = free_port(host)
    arguments = [url, host, str(port), root_path, token, *limits]
    process = subprocess.Popen([sys.executable, "-c", SERVER, *arguments])
    try:
        address = shown_address(host, port)
        _wait(process, address)
        yield Service(address, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=20)


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        port: int = free.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], address: str) -> None:
    for _ in range(600):
        assert process.poll() is None, "the service ended at once"
        try:
            httpx.get(f"{address}/v1/health", timeout=5)
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the service did not answer")
