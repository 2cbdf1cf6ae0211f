"""A reverse proxy in this process that shows a service below a path, as nginx does with
`location /PATH/ { proxy_pass http://SERVICE/; }`: the path is taken off."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")


def _handler(service: str, path: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def do_HEAD(self) -> None:
            self._pass_on()

        def log_message(self, *_: object) -> None:
            pass

        def _pass_on(self) -> None:
            if not self.path.startswith(f"{path}/"):
                self.send_error(404, "not below the path")
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            sent = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
            url = service + self.path.removeprefix(path)
            with (
                httpx.Client(timeout=60) as client,
                client.stream(self.command, url, headers=sent, content=body) as answer,
            ):
                self.send_response(answer.status_code)
                for name, value in answer.headers.multi_items():
                    if name.lower() not in HOP_BY_HOP:
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                for part in answer.iter_raw():
                    self.wfile.write(part)
                    self.wfile.flush()

    return Handler


@contextmanager
def proxied(service: str, path: str) -> Iterator[str]:
    """The address below which the proxy shows the service, while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(service, path))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{path}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
