"""A service of one's own, started as a process of its own and ended with the command."""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from autosync.api.cli.console import log_path
from autosync.api.cli.open_database import has_keys
from autosync.api.client.rest_client import Client
from autosync.api.engine.api_keys import KEY
from autosync.api.http.access.access_rules import named_tokens
from autosync.environment import DATABASE_URL_VARIABLE, TOKEN_VARIABLE
from autosync.errors import AutosyncError

HOST = "127.0.0.1"
START_SECONDS = 60.0
"""A service that does not answer after so long is broken; it takes about 3 s."""
STOP_SECONDS = 15.0
"""How long it may take to end with its workers before it is killed."""


@dataclass(frozen=True, slots=True)
class Service:
    """log: where it writes."""

    client: Client
    process: subprocess.Popen[bytes]
    log: Path

    @staticmethod
    @contextmanager
    def started(db: str, port: int) -> "Iterator[Service]":
        """Start the service with one worker; ends it on the way out.

        Raises:
            AutosyncError: it ended at once or never answered.
        """
        chosen, log = free_port(port), log_path("service")
        token, environment = _own_token(db)
        command = [sys.executable, "-m", "autosync.api.cli.main", "serve"]
        command += ["--host", HOST, "--port", str(chosen), "--workers", "1"]
        with log.open("wb") as sink:
            # a session of its own: Ctrl-C on the terminal reaches the command only, which ends it
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        address = f"http://{HOST}:{chosen}"
        with Client(address, token or "") as client:
            service = Service(client, process, log)
            try:
                service.wait_until_up()
                yield service
            finally:
                service.stop()

    def wait_until_up(self) -> None:
        """Raises AutosyncError when the service does not come up."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.client.http.get("/v1/health").is_success:
                    return
            except httpx.TransportError:  # not listening yet
                time.sleep(0.1)
        end = self.log.read_text(errors="replace")[-500:].strip()
        raise AutosyncError(
            f"the service did not start: {end or 'it wrote nothing'}",
            thing="service",
            remedy=f"Its log: {self.log}",
        )

    def wait(self) -> None:
        """Until Ctrl-C, or until the service ends."""
        try:
            self.process.wait()
        except KeyboardInterrupt:
            return

    def stop(self) -> None:
        """Ask it to end; kill it when it does not."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _own_token(db: str) -> tuple[str | None, dict[str, str]]:
    """What the command shows to its service, and the service's environment. What stands there for
    clients may be a key to another service; over a database with keys the command needs a token,
    and takes one of its own."""
    environment = {**os.environ, DATABASE_URL_VARIABLE: db}
    given = environment.pop(TOKEN_VARIABLE, None)
    if given is not None and not KEY.fullmatch(given):
        return named_tokens(given)[0].token, {**environment, TOKEN_VARIABLE: given}
    if not has_keys(db):
        return None, environment
    own = secrets.token_urlsafe(32)
    return own, {**environment, TOKEN_VARIABLE: own}


def free_port(wanted: int) -> int:
    """The wanted port, or a free one where it is taken."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AutosyncError(f"no port is free on {HOST}.", thing="port", value=wanted)
