"""Servers of a few lines on real sockets: one that answers as it is told, one that cuts lines."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Script:
    """answers: status, headers and body of each request, in order; the last one stays. A status of
    0 hangs up instead. seen: method, path and headers of what came."""

    answers: list[tuple[int, dict[str, str], Any]]
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    address: str = ""

    def answer(self) -> tuple[int, dict[str, str], Any]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def scripted(*answers: tuple[int, dict[str, str], Any]) -> Iterator[Script]:
    script = Script(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            script.seen.append((self.command, self.path, dict(self.headers)))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, body = script.answer()
            if status == 0:
                self.close_connection = True
                return
            content = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = handle_any  # noqa: N815  # as http.server calls them

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def cutting(port: int, allowed_bytes: list[int]) -> Iterator[str]:
    """The address of a line to a port on this machine. allowed_bytes: how many bytes each
    connection carries back before it is cut; those after them are not cut."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            left = allowed_bytes.pop(0) if allowed_bytes else 1 << 40
            threading.Thread(target=carry, args=(near, left), daemon=True).start()

    def carry(near: socket.socket, left: int) -> None:
        with near, socket.create_connection(("127.0.0.1", port)) as far:
            threading.Thread(target=forward, args=(near, far), daemon=True).start()
            with suppress(OSError):  # either end may be closed first
                while left > 0 and (part := far.recv(min(left, 512))):
                    near.sendall(part)
                    left -= len(part)
            with suppress(OSError):  # the other thread still reads: closing alone would not tell
                near.shutdown(socket.SHUT_RDWR)

    def forward(near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):  # the line is cut
            while part := near.recv(65536):
                far.sendall(part)
            far.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
