"""`autosync serve` with its worker: what others can see of it, and what outlives a kill."""

import os
import shutil
import signal
import socket
from contextlib import chdir
from pathlib import Path

import httpx
import pytest
from sqlalchemy import make_url
from typer.testing import CliRunner

from autosync.api.cli.commands.quickstart import keep_dashboard
from autosync.api.cli.main import app
from autosync.api.client.rest_client import Client
from autosync.api.db.schema_migration import current_revision, known_revisions, migrate
from autosync.api.http.listening import shown_address
from autosync.errors import AutosyncError, InvalidInput
from tests.api.cli.command import LONGEST_SECONDS, autosync, start
from tests.api.databases import opened, postgresql_database
from tests.api.http.serving import children, free_port
from tests.waiting import until


def is_there(url: str) -> bool:
    """Not where nobody listens yet."""
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


def words(pid: int, kind: str) -> str:
    """Empty where the process has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/{kind}").read_text()
    except OSError:
        return ""


def workers(pid: int) -> list[int]:
    return [each for each in children(pid) if "\0worker\0" in words(each, "cmdline")]


def test_a_worker_shows_no_secret_and_is_replaced(
    tmp_path: Path, postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgresql_database(postgresql) as plain:
        url = make_url(plain).set(password="s3cret").render_as_string(hide_password=False)
        monkeypatch.setenv("AUTOSYNC_DATABASE_URL", url)
        monkeypatch.setenv("AUTOSYNC_TOKEN", "0p3n-s3same")
        port = free_port()
        serving = start(tmp_path, "serve", "--port", str(port))
        try:
            ready = f"http://127.0.0.1:{port}/v1/ready"
            until(lambda: is_there(ready), "a worker")
            refused = httpx.get(ready.replace("ready", "tunings"), timeout=LONGEST_SECONDS)
            assert refused.status_code == 401
            (worker,) = workers(serving.pid)
            assert "s3cret" not in words(worker, "cmdline")
            environment = words(worker, "environ")
            assert "AUTOSYNC_DATABASE_URL=" in environment
            assert "0p3n-s3same" not in environment
            os.kill(worker, signal.SIGKILL)
            until(lambda: set(workers(serving.pid)) - {worker}, "another worker")
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
        (("--root-path", "no slash"), "no path below which"),
        (("--host", "no.such.host.invalid", "--token", "0p3n"), "cannot listen on"),
        (("--port", "{taken}"), "Address already in use"),
    ],
)
def test_a_service_that_is_refused_makes_and_changes_nothing(
    tmp_path: Path, earlier_schema: Path, arguments: tuple[str, ...], why: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        given = [each.format(taken=taken.getsockname()[1]) for each in arguments]
        refused = autosync(tmp_path, "serve", *given, code=2)
        assert why in " ".join(refused.stderr.split())
        assert not list(tmp_path.glob("*.db*"))
        shutil.copy(earlier_schema, tmp_path / "autosync.db")
        refusal(tmp_path, ("serve", *given))
        assert _revision(tmp_path) == known_revisions()[-2]


@pytest.fixture(scope="module")
def earlier_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of the schema before the newest."""
    folder = tmp_path_factory.mktemp("earlier")
    migrate(f"sqlite:///{folder}/autosync.db", known_revisions()[-2])
    return folder / "autosync.db"


def _revision(folder: Path) -> str | None:
    url = f"sqlite:///{folder}/autosync.db"
    with opened(url) as database, database.engine.connect() as connection:
        return current_revision(connection)


COMMANDS = (
    ("tunings",),
    ("show", "3f2a90c1"),
    ("logs", "3f2a90c1"),
    ("export", "3f2a90c1"),
    ("explain", "3f2a90c1"),
    ("cancel", "3f2a90c1"),
    ("keys", "list"),
    ("keys", "add", "alice"),
    ("simulator", "list"),
    ("simulator", "add", "mine", "mine.safetensors"),
    ("worker", "--once"),
)
"""All but those that begin something."""


def refusal(folder: Path, command: tuple[str, ...]) -> str:
    """Of a command that runs in this process, which has loaded what it needs."""
    with chdir(folder):
        error = CliRunner().invoke(app, command, env={"XDG_STATE_HOME": str(folder)}).exception
    assert isinstance(error, AutosyncError), error
    return str(error)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_makes_no_database_and_changes_no_schema(
    tmp_path: Path, earlier_schema: Path, command: tuple[str, ...]
) -> None:
    for file in ("mine.safetensors", "mine.json"):
        (tmp_path / file).write_text("{}")
    assert "autosync db upgrade" in refusal(tmp_path, command)
    assert not list(tmp_path.glob("*.db*"))
    (tmp_path / "autosync.db").touch()
    assert "is empty" in refusal(tmp_path, command)
    assert (tmp_path / "autosync.db").stat().st_size == 0
    shutil.copy(earlier_schema, tmp_path / "autosync.db")
    assert "autosync db upgrade" in refusal(tmp_path, command)
    assert _revision(tmp_path) == known_revisions()[-2]


def test_an_upgrade_makes_the_database_where_there_is_none(tmp_path: Path) -> None:
    autosync(tmp_path, "db", "upgrade")
    assert _revision(tmp_path) == known_revisions()[-1]
    autosync(tmp_path, "keys", "list")


@pytest.mark.parametrize("host", ["::1", "127.0.0.2"])
def test_it_serves_on_any_address_of_loopback(tmp_path: Path, host: str) -> None:
    port = free_port(host)
    serving = start(tmp_path, "serve", "--host", host, "--port", str(port), "--workers", "0")
    address = shown_address(host, port)
    try:
        until(lambda: is_there(f"{address}/v1/health"), "an answer")
        with Client(address) as client:
            assert client.tunings.list().items == []
        page = httpx.get(address, headers={"Accept": "text/html"}, timeout=LONGEST_SECONDS)
        assert page.is_success
    finally:
        serving.send_signal(signal.SIGTERM)
        out, _ = serving.communicate(timeout=LONGEST_SECONDS)
    assert address in out


def test_an_empty_token_in_the_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would serve everybody, where its operator meant to close it."""
    monkeypatch.setenv("AUTOSYNC_TOKEN", "")
    assert "the token is empty" in autosync(tmp_path, "serve", code=2).stderr


def test_a_quickstart_whose_port_is_taken_does_not_ask_for_another_tuning(tmp_path: Path) -> None:
    """As by the dashboard of a quickstart before this one."""
    url = f"sqlite:///{tmp_path}/own.db"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"cannot listen on .*:{port}") as refused:
            keep_dashboard(port, url)
    assert f"autosync serve --port PORT --db {url}" in refused.value.remedy
