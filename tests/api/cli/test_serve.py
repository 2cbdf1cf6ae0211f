"""`autosync serve` with its worker: what others can see of it, and what outlives a kill."""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url

from tests.api.cli.command import LONGEST_SECONDS, autosync, start
from tests.api.databases import postgresql_database


def until(answer: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline:
        try:
            if found := answer():
                return found
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.1)
    raise AssertionError(what)


def children(pid: int) -> list[int]:
    """Of all its threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(each) for task in tasks for each in (task / "children").read_text().split()]


def words(pid: int, kind: str) -> str:
    return Path(f"/proc/{pid}/{kind}").read_text()


def workers(pid: int) -> list[int]:
    return [each for each in children(pid) if "\0worker\0" in words(each, "cmdline")]


def test_a_worker_shows_no_secret_and_is_replaced(
    tmp_path: Path, postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgresql_database(postgresql) as plain, socket.socket() as free:
        url = make_url(plain).set(password="s3cret").render_as_string(hide_password=False)
        monkeypatch.setenv("AUTOSYNC_DATABASE_URL", url)
        monkeypatch.setenv("AUTOSYNC_TOKEN", "0p3n-s3same")
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        serving = start(tmp_path, "serve", "--port", str(port))
        try:
            ready = f"http://127.0.0.1:{port}/v1/ready"
            until(lambda: httpx.get(ready).is_success, "no worker lives")
            assert httpx.get(ready.replace("ready", "tunings")).status_code == 401
            (worker,) = workers(serving.pid)
            assert "s3cret" not in words(worker, "cmdline")
            assert "0p3n-s3same" not in words(worker, "environ")
            os.kill(worker, signal.SIGKILL)
            until(lambda: set(workers(serving.pid)) - {worker}, "the worker was not replaced")
        finally:
            last = workers(serving.pid)
            serving.send_signal(signal.SIGTERM)
            out, error = serving.communicate(timeout=LONGEST_SECONDS)
    assert not [each for each in last if Path(f"/proc/{each}").exists()]
    assert "s3cret" not in out + error
    assert f"worker {worker} has ended (-9)" in error


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--host", "0.0.0.0"), "can be reached by others"),
        (("--token", ""), "the token is empty"),
        (("--limit", "bugdet=3"), "no limit can be 'bugdet'"),
    ],
)
def test_an_open_service_is_refused(tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    assert why in " ".join(autosync(tmp_path, "serve", *arguments, code=2).stderr.split())
    assert not (tmp_path / "autosync.db").exists()


def test_an_empty_token_in_the_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would serve everybody, where its operator meant to close it."""
    monkeypatch.setenv("AUTOSYNC_TOKEN", "")
    assert "the token is empty" in autosync(tmp_path, "serve", code=2).stderr
